"""The canaries that ship, one YAML file each."""
