"""Request and response models, as OpenAPI describes them."""
