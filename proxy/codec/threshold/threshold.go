// Package threshold sends of each gradient only the values that matter now, and the rest
// later: DCT-DP (Gupta et al. 2021), Algorithm 1. What is not sent stays in a residual that
// is added to the next gradient. The threshold that decides is renewed only now and then,
// since selecting it costs more than all the rest.
//
// The gradient of a layer comes in as the bytes of a values frame; positions and values go
// out as a [sparse.Vector]. A [Layer] is the state of one layer of one worker. It has no
// clock and no randomness but a seeded one: the same pushes give the same bytes. Package
// values owns the layers, keeps their residuals in files and decides which keys share a
// layer.
//
// # What is exact
//
// Let W be the sum of gradient and residual as computed, S the values sent and E the new
// residual. Then W = S + E always holds, without rounding. W itself is rounded to the
// residual's precision, once for each push: that is all that can get lost. Residuals of
// float64 gradients are float64, all others float32.
package threshold

import (
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
)

// Config says how a layer is compressed. Its zero value is not valid; start
// from [DefaultConfig].
type Config struct {
	// Sparsity is the share of values that is not sent, in [0, 1): eta of
	// Algorithm 1.
	Sparsity float64
	// Auto has [Layer.Adapt] choose the sparsity, up to Sparsity.
	Auto bool
	// Lifespan is for how many pushes a threshold is used, at least 1: L of Algorithm 1.
	Lifespan int
	// Warmup is the number of pushes in which the sparsity rises from almost nothing to
	// Sparsity, while the share that is sent falls exponentially. 0: none.
	Warmup int
	// Slack renews the threshold early, at the push after one that sent more than (1 +
	// Slack) times what it should, or less than half. Fixed thresholds do that in the first
	// pushes, while the residual fills, and when gradients change their scale. 0: only
	// Lifespan decides, as in Algorithm 1.
	Slack float64
	// DrainEvery empties the residual at random, with a probability of 1 in DrainEvery for
	// each push: that push sends everything. Gupta et al. do so every million iterations
	// (section 3.3, remark 2), lest updates grow stale. 0: never.
	DrainEvery int
	// End is the number of the layer's pushes, since it was made, from which on nothing
	// waits; 0: none. In the Ending pushes before it the share that is sent rises
	// exponentially to all, since at once too much stale gradient would be sent.
	End, Ending int
	// Seed makes draining differ between layers.
	Seed uint64
}

// DefaultConfig is that of the paper, with the threshold renewed early where it does not
// fit.
var DefaultConfig = Config{Sparsity: 0.99, Lifespan: 1000, Slack: 0.1}

// Validate returns the first fault of c.
func (c Config) Validate() error {
	switch {
	case !(c.Sparsity >= 0 && c.Sparsity < 1):
		return fmt.Errorf("threshold: sparsity %g; it must be at least 0 and less than 1", c.Sparsity)
	case c.Lifespan < 1:
		return fmt.Errorf("threshold: lifespan of %d pushes; it must be at least 1", c.Lifespan)
	case c.Warmup < 0:
		return fmt.Errorf("threshold: warm-up of %d pushes; it must not be negative", c.Warmup)
	case c.End < 0 || c.Ending < 0:
		return fmt.Errorf("threshold: an end after %d pushes, over %d; they must not be negative", c.End, c.Ending)
	case !(c.Slack >= 0):
		return fmt.Errorf("threshold: slack %g; it must not be negative", c.Slack)
	case c.DrainEvery < 0:
		return fmt.Errorf("threshold: draining every %d pushes; it must not be negative", c.DrainEvery)
	}
	return nil
}

// ErrLength is wrapped where a gradient does not have the layer's length.
var ErrLength = errors.New("a gradient of another length than its layer")

// Stats counts what a layer has done since it was made.
type Stats struct {
	Pushes    uint64 // calls of Compress and CompressAt
	NonFinite uint64 // NaNs and infinities that went out
}

// ResidualSize returns how many bytes the residual of one number takes.
func ResidualSize(kind element.Kind) int {
	if kind == element.Float64 {
		return 8
	}
	return 4
}
