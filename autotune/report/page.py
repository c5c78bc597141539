from pathlib import Path
def write_report(stored, path): Path(path).write_text('placeholder')
