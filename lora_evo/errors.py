"""What goes wrong, in sentences for users. Both kinds end the command line with exit code 2."""


class LoraEvoError(ValueError):
    """Base class: a bad call or bad input."""


class AdapterError(LoraEvoError):
    """An adapter that cannot be read, bred or written: names the file, the module and the reason."""


class OperatorError(LoraEvoError):
    """A call that an operator cannot serve: unknown parameter, value out of range, wrong number of parents."""
