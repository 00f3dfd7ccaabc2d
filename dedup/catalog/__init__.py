"""The catalog and its stores; `open_catalog` opens one by URL."""
