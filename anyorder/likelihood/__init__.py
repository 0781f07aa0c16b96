"""How is likelihood measured? What programs call is named here."""

from anyorder.likelihood.conditional import conditional_logprob
from anyorder.likelihood.ensemble import context_logprobs, ensemble_nll
from anyorder.likelihood.nll import block_nll

__all__ = ['block_nll', 'conditional_logprob', 'context_logprobs', 'ensemble_nll']
