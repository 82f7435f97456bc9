package threshold

import "math"

// With Config.Auto a layer's residual is kept at a share of the training so far. In SGD with error
// feedback what is held back for tau steps adds O(tau/T) to the error after T steps, while the
// noise of the gradients adds O(1/sqrt(T)) whatever tau is (Stich and Karimireddy 2020, The
// error-feedback framework): a tau that grows along with T costs no more later than early. So few
// values wait at first, which is the warm-up of Deep Gradient Compression (Lin et al. 2018), whose
// 75% a layer begins with, and more as training goes on.
const (
	// autoLag is how many steps' gradient may wait, as a share of the steps so far, and
	// autoLeast how many may from the start.
	autoLag, autoLeast = 0.01, 1
	// autoFirst is the share of values that is sent at first, and autoMost the largest one.
	autoFirst, autoMost = 0.25, 0.5
	// The share changes by the root of what is asked for, and by autoChange at most, since the
	// residual takes some steps to follow it.
	autoChange = 2
)

// Adapts reports whether Adapt does anything.
func (l *Layer) Adapts() bool { return l.config.Auto }

// Adapt sets the share of values that is sent by how much of the gradient waits, in steps: the
// root of the residual's sum of squares over that of one step's gradient. It does nothing without
// [Config.Auto].
func (l *Layer) Adapt(held float64) {
	if !l.config.Auto || !(held >= 0) {
		return
	}
	l.share = adapted(l.target(), held, l.age-l.begun, 1-l.config.Sparsity)
	l.due = true
}

// adapted returns the share that is sent after one at which so much is held, steps after the first,
// at least least.
func adapted(share, held float64, steps int, least float64) float64 {
	excess := math.Sqrt(held / max(autoLeast, autoLag*float64(steps)))
	share *= min(max(excess, 1./autoChange), autoChange)
	return max(min(share, max(autoMost, least)), least)
}

// target is the share of values that is sent, but for a warm-up and the end.
func (l *Layer) target() float64 {
	if l.config.Auto {
		return l.share
	}
	return 1 - l.config.Sparsity
}
