"""Commands on a host, over ssh or here."""
