// Package slim sends of gradients and of parameters a core, the largest, and a
// random explorer from the others: Slim-DP of Sun and others 2018, Algorithm 1.
// The core is chosen anew only every few rounds, and its positions are sent
// only then (section 3.4); the explorer is another one each round.
//
// In come the values of a layer, as the bytes of a values frame; out go
// positions and values. A [Sender] serves one layer in one direction of one
// link, the [Receiver] at the other end sees all its rounds in order. For a push
// the receiver gives zeros where nothing came, for the answer of a pull what was
// there before ([sparse.Vector.Expand], [sparse.Vector.Merge]). What a push does
// not send is not kept for later: that is Slim-DP, and package threshold is the
// other way.
package slim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// Config says what is sent.
type Config struct {
	Alpha   float64 // share of the values that is sent, in (0, 1]
	Epsilon float64 // share that the explorer has, in [0, Alpha]
	Rounds  int     // a core serves so many rounds, at least 1: q of section 3.4
	Seed    uint64  // of the explorer
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	switch {
	case !(c.Alpha > 0 && c.Alpha <= 1):
		return fmt.Errorf("slim: alpha %g; it must be more than 0 and at most 1", c.Alpha)
	case !(c.Epsilon >= 0 && c.Epsilon <= c.Alpha):
		return fmt.Errorf("slim: epsilon %g; it must be 0 to alpha, which is %g", c.Epsilon, c.Alpha)
	case c.Rounds < 1:
		return fmt.Errorf("slim: a core for %d rounds; it must be at least 1", c.Rounds)
	}
	return nil
}

// ErrLength is wrapped where values do not have the layer's length.
var ErrLength = errors.New("values of another length than their layer")

// ErrCorrupt is wrapped by all errors of a [Receiver]: the other end did not
// write this in this round. The link cannot go on.
var ErrCorrupt = errors.New("slim: corrupt round")

// sizes is how many values core and explorer have in a layer of n.
func (c Config) sizes(n int) (core, explorer int) {
	core = int(math.Round((c.Alpha - c.Epsilon) * float64(n)))
	explorer = int(math.Round(c.Epsilon * float64(n)))
	return core, min(explorer, n-core)
}

// Flags of a round's first byte.
const (
	hasCore  byte = 1 // the positions of a new core follow
	allFlags byte = hasCore
)

// Receiver knows the core of the layer that a [Sender] serves.
type Receiver struct {
	most  int // numbers in a layer, at most
	round uint64
	kind  element.Kind
	n     int
	core  sparse.Mask
	got   sparse.Vector
}

// NewReceiver returns the receiver for a layer of at most so many numbers.
func NewReceiver(most int) *Receiver { return &Receiver{most: most} }

// Decode reads what [Sender.Append] wrote and returns what follows it. The
// vector is the receiver's, valid until the next call.
func (r *Receiver) Decode(src []byte) (v *sparse.Vector, rest []byte, err error) {
	v, count, src, err := r.DecodeHeader(src)
	if err != nil {
		return nil, nil, err
	}
	v.Values, rest, err = sparse.DecodeValues(v.Values[:0], v.Kind, count, src)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return v, rest, nil
}

// DecodeHeader reads what [Sender.AppendHeader] wrote: a vector whose count of
// values are still missing.
func (r *Receiver) DecodeHeader(src []byte) (v *sparse.Vector, count int, rest []byte, err error) {
	if len(src) < 2 || src[0]&^allFlags != 0 {
		return nil, 0, nil, fmt.Errorf("%w: it does not begin as one", ErrCorrupt)
	}
	if src[1] != byte(r.round) {
		return nil, 0, nil, fmt.Errorf("%w: number %d where %d comes next", ErrCorrupt, src[1], byte(r.round))
	}
	rest = src[2:]
	switch {
	case src[0]&hasCore != 0:
		if rest, err = r.readCore(rest); err != nil {
			return nil, 0, nil, err
		}
	case r.round == 0:
		return nil, 0, nil, fmt.Errorf("%w: the first has no core", ErrCorrupt)
	}
	r.got.Reset(r.kind, r.n)
	explored, rest, err := sparse.DecodePositions(rest, r.got.Mask, r.n)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("%w: explorer: %w", ErrCorrupt, err)
	}
	for i, w := range r.core {
		if r.got.Mask[i]&w != 0 {
			return nil, 0, nil, fmt.Errorf("%w: the explorer is in the core", ErrCorrupt)
		}
		r.got.Mask[i] |= w
	}
	r.round++
	return &r.got, explored + r.core.Count(), rest, nil
}

// readCore reads kind, length and positions of a core.
func (r *Receiver) readCore(src []byte) (rest []byte, err error) {
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return nil, fmt.Errorf("%w: values of no known kind", ErrCorrupt)
	}
	n, used := binary.Uvarint(src[1:])
	if used <= 0 || n > uint64(max(r.most, 0)) {
		return nil, fmt.Errorf("%w: a layer of %d numbers, at most %d are expected", ErrCorrupt, n, r.most)
	}
	r.kind, r.n = element.Kind(src[0]), int(n)
	r.core = r.core.Resized(r.n)
	_, rest, err = sparse.DecodePositions(src[1+used:], r.core, r.n)
	if err != nil {
		return nil, fmt.Errorf("%w: core: %w", ErrCorrupt, err)
	}
	return rest, nil
}
