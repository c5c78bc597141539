"""SGLang as it really behaves: its log, its endpoints, its flags and how it fails."""
