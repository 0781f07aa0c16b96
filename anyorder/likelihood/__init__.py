"""How is likelihood measured? What programs call is named here."""

from anyorder.likelihood.ensemble import context_logprobs
from anyorder.likelihood.nll import block_nll, conditional_logprob, ensemble_nll

__all__ = ['block_nll', 'conditional_logprob', 'context_logprobs', 'ensemble_nll']
