"""What may a JSON schema hold that becomes an expression?"""

# keywords that outlines-core leaves out of its expression, though they forbid texts
NUMBERS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf']
ARRAYS = ['uniqueItems', 'contains', 'minContains', 'maxContains']
OBJECTS = ['patternProperties', 'propertyNames', 'minProperties', 'maxProperties']
DEPENDENT = ['dependentRequired', 'dependentSchemas', 'not', 'if']
LEFT_OUT = [*NUMBERS, *ARRAYS, *OBJECTS, *DEPENDENT]

# keywords whose values are schemas: one, a list of them, or a dict by names of one's own
PARTS = ['items', 'prefixItems', 'additionalProperties', 'anyOf', 'oneOf', 'allOf']
NAMED_PARTS = ['properties', '$defs', 'definitions']


def check_schema(schema, shown):
    """Raise ValueError for a keyword whose rule the texts of the expression would not keep.

    `shown` is how a message calls the schema."""
    for part in parts_of(schema):
        for word in LEFT_OUT:
            if part.get(word, False) is not False:
                raise ValueError(
                    f'{shown} has {word}, which no expression is made of: write what may stand '
                    'there as a pattern, an enum or anyOf'
                )
        lengths = part.keys() & {'minLength', 'maxLength'}
        if lengths and part.keys() & {'pattern', 'format'}:
            raise ValueError(
                f'{shown} has {min(lengths)} beside a pattern or a format, which would not count: '
                'write the length into the pattern, as [a-z]{2,9}'
            )


def parts_of(schema):
    """Yield a schema and all schemas within."""
    if isinstance(schema, list):
        for one in schema:
            yield from parts_of(one)
    if not isinstance(schema, dict):
        return
    yield schema
    for word in PARTS:
        yield from parts_of(schema.get(word))
    for word in NAMED_PARTS:
        named = schema.get(word)
        if isinstance(named, dict):
            yield from parts_of([*named.values()])
