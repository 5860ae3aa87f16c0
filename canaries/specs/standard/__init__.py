"""The canaries of the suite `standard`: English, for any model."""
