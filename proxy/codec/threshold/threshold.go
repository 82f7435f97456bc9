// Package threshold sends of each gradient only the values that matter, and the
// rest later: DCT-DP of Gupta and others 2021, Algorithm 1. Unsent values stay in a
// residual that is added to the next gradient, and the threshold that decides is
// renewed only now and then.
//
// In comes the gradient of a layer, as the bytes of a values frame; out go
// positions and values ([sparse.Vector]), and the residual keeps the rest. A
// [Layer] is the state of one layer of one worker. It has no clock and no
// randomness but a counted one: the same pushes give the same bytes.
//
// # What is exact
//
// With W the sum of gradient and residual as computed, S the sent values and E the
// new residual, W = S + E always, without rounding. W itself is rounded to the
// residual's precision, once for each push: that is all that can get lost.
// [Config.Exact] keeps residuals of float32 gradients as float64: then for each
// number the sum of the gradients in float64 is S + E in float64, exactly, as long
// as the gradients lie within 2^29 of each other and of their sum (no addition
// rounds), and within the rounding of float64 otherwise. Residuals of 16-bit
// gradients are float32, and float64 with Exact.
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
	// Lifespan is for how many pushes a threshold serves, at least 1: L of
	// Algorithm 1.
	Lifespan int
	// Warmup is the number of pushes in which the sparsity rises from nothing to
	// Sparsity; the share that is sent falls exponentially. 0: none.
	Warmup int
	// Slack renews the threshold before its time, at the push after one that sent
	// more than (1 + Slack) times what it should, or less than half. With fixed
	// thresholds that is so in the first pushes, while the residual fills, and
	// where gradients change their scale. 0: only Lifespan decides, as in
	// Algorithm 1.
	Slack float64
	// DrainEvery empties the residual now and then, at each push with a
	// probability of 1 to DrainEvery: that push sends all of it. Gupta and others
	// do so every million iterations (section 3.3, remark 2), lest updates grow
	// old. 0: never.
	DrainEvery int
	// End is a number of the layer's pushes, since it was made, from which on
	// nothing waits, so that what waited goes along with them; 0: none. In the
	// pushes before, Ending of them, the share that is sent rises exponentially to
	// all: at once it would be too much that has grown old.
	End, Ending int
	// Exact keeps the residual with more precision; see the package comment. It
	// takes twice the memory.
	Exact bool
	// Seed makes draining differ between layers.
	Seed uint64
}

// DefaultConfig is as in the paper, with the threshold renewed early where it
// does not fit.
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

// Stats counts what a layer did since it was made.
type Stats struct {
	Pushes    uint64 // calls of Compress and CompressAt
	Renewals  uint64 // thresholds computed
	Drains    uint64 // pushes that emptied the residual
	Values    uint64 // numbers that came in
	Sent      uint64 // numbers that went out, flushes included
	NonFinite uint64 // of these, NaNs and infinities
}

// ResidualSize is how many bytes the residual of a number takes.
func ResidualSize(kind element.Kind, exact bool) int {
	if kind == element.Float64 || exact {
		return 8
	}
	return 4
}
