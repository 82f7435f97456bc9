package slim

import (
	"encoding/binary"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Sender selects what is sent of one layer in one direction of a link. It is not safe for
// concurrent use. Between rounds it keeps three masks, of core, explorer and their union.
type Sender struct {
	config   Config
	kind     element.Kind
	n        int
	round    uint64
	left     int // rounds that the core still serves
	core     sparse.Mask
	explorer explorer
	out      sparse.Vector
	selector vector.Selector
}

// NewSender returns the sender for a layer of n numbers.
func NewSender(kind element.Kind, n int, c Config) (*Sender, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !kind.Valid() || n < 0 {
		return nil, fmt.Errorf("slim: a layer of %d numbers of %v", n, kind)
	}
	_, size := c.sizes(n)
	return &Sender{config: c, kind: kind, n: n, explorer: explorer{seed: c.Seed, size: size}}, nil
}

// AppendHeader appends a round without its values, for callers that code these themselves,
// and returns what they are. The vector belongs to the sender and is valid until the next
// call.
func (s *Sender) AppendHeader(dst, values []byte) (header []byte, selected *sparse.Vector, err error) {
	return s.AppendHeaderBy(dst, values, values)
}

// AppendHeaderBy is AppendHeader with a core chosen by weights instead of by the values
// themselves: the core has the values whose weights are largest in magnitude. There are as
// many weights as values, of the same kind. The receiver does not see by what the core was
// chosen.
func (s *Sender) AppendHeaderBy(dst, weights, values []byte) (header []byte, selected *sparse.Vector, err error) {
	if size := s.n * s.kind.Size(); len(values) != size || len(weights) != size {
		return nil, nil, fmt.Errorf("slim: %w: %d bytes, and %d of weights, for %d numbers of %v", ErrLength, len(values), len(weights), s.n, s.kind)
	}
	renewed := s.left == 0
	if renewed {
		core, _ := s.config.sizes(s.n)
		s.selectCore(weights, core)
		s.left = s.config.Rounds
	}
	// Drawn in each round, and after the core was chosen: the receiver does the same
	// in this order.
	s.explorer.draw(s.core, s.n, s.round)
	flags := byte(0)
	if renewed {
		flags |= hasCore
	}
	if s.round == 0 {
		flags |= begins
	}
	dst = append(dst, flags, byte(s.round))
	if s.round == 0 {
		dst = append(dst, byte(s.kind))
		dst = binary.AppendUvarint(dst, uint64(s.n))
		dst = binary.AppendUvarint(dst, uint64(s.explorer.size))
		dst = binary.LittleEndian.AppendUint64(dst, s.explorer.seed)
	}
	if renewed {
		dst = sparse.AppendPositions(dst, s.core, s.n)
	}
	s.out.Reset(s.kind, s.n)
	for i := range s.out.Mask {
		s.out.Mask[i] = s.core[i] | s.explorer.mask[i]
	}
	s.out.Gather(values)
	s.round++
	s.left--
	return dst, &s.out, nil
}

// selectCore is CoreSelection: the positions of the size largest magnitudes. Infinities and
// NaNs count as larger than any number; of equal ones the first are taken, so that the core
// has exactly size positions.
func (s *Sender) selectCore(values []byte, size int) {
	s.core = s.core.Resized(s.n)
	if size == 0 {
		return
	}
	least := s.selector.Largest(s.kind, values, size)
	equal := size
	for i := range s.n {
		if vector.Magnitude(s.kind, values, i) > least {
			s.core.Set(i)
			equal--
		}
	}
	for i := 0; equal > 0; i++ {
		if vector.Magnitude(s.kind, values, i) == least {
			s.core.Set(i)
			equal--
		}
	}
}
