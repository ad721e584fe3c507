"""Which name of the old package is served by what: the import hook and its tables."""
