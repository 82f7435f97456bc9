// Package slim sends of gradients and of parameters a core, the largest, and a
// random explorer from the others: Slim-DP of Sun and others 2018, Algorithm 1.
// The core is chosen again only every few rounds, and its positions are sent
// only then (section 3.4); the explorer is another one each round, which both
// ends draw alike, where the paper sends its positions.
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
	hasCore  byte = 1 << iota // the positions of a new core follow
	begins                    // before them what does not change: kind, length and explorer
	allFlags = hasCore | begins
)

// Receiver knows the core of the layer that a [Sender] serves.
type Receiver struct {
	most     int // numbers in a layer, at most
	round    uint64
	kind     element.Kind
	n        int
	core     sparse.Mask
	explorer explorer
	got      sparse.Vector
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
	r.explorer.draw(r.core, r.n, r.round)
	r.got.Reset(r.kind, r.n)
	for i := range r.got.Mask {
		r.got.Mask[i] = r.core[i] | r.explorer.mask[i]
	}
	r.round++
	return &r.got, count, rest, nil
}

// beginRound reads kind and length of the layer, and how many the explorer draws by
// which seed.
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
