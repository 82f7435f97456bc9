// Package slim sends a core of each layer's gradients or parameters, the largest ones, and
// a random explorer drawn from the others: Slim-DP (Sun et al. 2018), Algorithm 1. The core
// is chosen again only every few rounds, and its positions are sent only then (section
// 3.4). The explorer differs in each round; both ends draw it alike, where the paper sends
// its positions.
//
// Values of a layer come in as the bytes of a values frame; positions and values go out. A
// [Sender] serves one layer in one direction of one link; the [Receiver] at the other end
// sees all its rounds in order. For a push the receiver gives zeros where nothing came, for
// the answer of a pull what it had before ([sparse.Vector.Expand], [sparse.Vector.Merge]).
// What a push leaves out is not kept for later: that is Slim-DP, and package threshold is
// the alternative.
//
// A round carries the low byte of its number, so that a lost or repeated round is an error
// and not a silently different explorer. Neither type is safe for concurrent use.
package slim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
)

// Config says how much is sent.
type Config struct {
	Alpha   float64 // share of the values that is sent, in (0, 1]
	Epsilon float64 // share that the explorer has, in [0, Alpha]
	Rounds  int     // rounds for which a core is used, at least 1: q of section 3.4
	Seed    uint64  // of the explorer
}

// Validate returns the first fault of c.
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

// ErrCorrupt is wrapped by all errors of a [Receiver]: the other end did not write this in
// this round. Core and explorer would differ from now on, so the link cannot go on.
var ErrCorrupt = errors.New("slim: corrupt round")

// sizes returns how many values core and explorer have in a layer of n.
func (c Config) sizes(n int) (core, explorer int) {
	core = int(math.Round((c.Alpha - c.Epsilon) * float64(n)))
	explorer = int(math.Round(c.Epsilon * float64(n)))
	return core, min(explorer, n-core)
}

// Flags of a round's first byte.
const (
	hasCore  byte = 1 << iota // the positions of a new core follow
	begins                    // before them what is constant: kind, length and explorer
	allFlags = hasCore | begins
)

// Receiver keeps the core of the layer that a [Sender] serves, at most one bit for each of
// its most numbers, and decodes its rounds.
type Receiver struct {
	most     int // numbers in a layer, at most
	round    uint64
	kind     element.Kind
	n        int
	core     sparse.Mask
	explorer explorer
	got      sparse.Vector
}

// NewReceiver returns the receiver for a layer of at most most numbers.
func NewReceiver(most int) *Receiver { return &Receiver{most: most} }

// DecodeHeader reads what [Sender.AppendHeader] wrote. It returns a vector whose count
// values are still missing; the caller decodes them. A failed round leaves the receiver
// unusable.
func (r *Receiver) DecodeHeader(src []byte) (v *sparse.Vector, count int, rest []byte, err error) {
	if len(src) < 2 || src[0]&^allFlags != 0 {
		return nil, 0, nil, fmt.Errorf("%w: it does not begin as one", ErrCorrupt)
	}
	if src[1] != byte(r.round) {
		return nil, 0, nil, fmt.Errorf("%w: number %d where %d comes next", ErrCorrupt, src[1], byte(r.round))
	}
	rest = src[2:]
	if isFirst := r.round == 0; isFirst != (src[0]&begins != 0) || isFirst && src[0]&hasCore == 0 {
		return nil, 0, nil, fmt.Errorf("%w: flags %d in round %d", ErrCorrupt, src[0], r.round)
	}
	if src[0]&begins != 0 {
		if rest, err = r.beginRound(rest); err != nil {
			return nil, 0, nil, err
		}
	}
	if src[0]&hasCore != 0 {
		r.core = r.core.Resized(r.n)
		if _, rest, err = sparse.DecodePositions(rest, r.core, r.n); err != nil {
			return nil, 0, nil, fmt.Errorf("%w: core: %w", ErrCorrupt, err)
		}
	}
	count = r.core.Count() + r.explorer.size
	if count > r.n {
		return nil, 0, nil, fmt.Errorf("%w: core and explorer of %d numbers in a layer of %d", ErrCorrupt, count, r.n)
	}
	// The check above guarantees that the explorer finds as many positions outside of the
	// core.
	r.explorer.draw(r.core, r.n, r.round)
	r.got.Reset(r.kind, r.n)
	for i := range r.got.Mask {
		r.got.Mask[i] = r.core[i] | r.explorer.mask[i]
	}
	r.round++
	return &r.got, count, rest, nil
}

// beginRound reads the constants of a layer: kind and length, the explorer's size and its
// seed.
func (r *Receiver) beginRound(src []byte) (rest []byte, err error) {
	if len(src) == 0 || !element.Kind(src[0]).Valid() {
		return nil, fmt.Errorf("%w: values of no known kind", ErrCorrupt)
	}
	n, used := binary.Uvarint(src[1:])
	if used <= 0 || n > uint64(max(r.most, 0)) {
		return nil, fmt.Errorf("%w: a layer of %d numbers, at most %d are expected", ErrCorrupt, n, r.most)
	}
	r.kind, r.n = element.Kind(src[0]), int(n)
	src = src[1+used:]
	size, used := binary.Uvarint(src)
	if used <= 0 || size > n || len(src) < used+8 {
		return nil, fmt.Errorf("%w: an explorer of %d in a layer of %d numbers", ErrCorrupt, size, n)
	}
	r.explorer.size, r.explorer.seed = int(size), binary.LittleEndian.Uint64(src[used:])
	return src[used+8:], nil
}
