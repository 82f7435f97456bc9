package slim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/proxy/codec/vector"
)

// Sender selects what is sent of a layer.
type Sender struct {
	config   Config
	kind     element.Kind
	n        int
	round    uint64
	left     int // rounds that the core still serves
	core     sparse.Mask
	explorer sparse.Mask
	out      sparse.Vector
	selector vector.Selector
	source   rand.PCG
}

// NewSender returns the sender for a layer of n numbers.
func NewSender(kind element.Kind, n int, c Config) (*Sender, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !kind.Valid() || n < 0 {
		return nil, fmt.Errorf("slim: a layer of %d numbers of %v", n, kind)
	}
	return &Sender{config: c, kind: kind, n: n}, nil
}

// Bytes is the memory that the sender keeps between rounds, without the values.
func (s *Sender) Bytes() int { return 3 * 8 * sparse.Words(s.n) }

// Append appends a round: what is sent of the values, the bytes of all numbers
// of the layer.
func (s *Sender) Append(dst, values []byte) ([]byte, error) {
	dst, selected, err := s.AppendHeader(dst, values)
	if err != nil {
		return nil, err
	}
	return sparse.AppendValues(dst, s.kind, selected.Values, selected.Count() < s.n/4), nil
}

// AppendHeader appends a round without its values, for callers that code these
// themselves, and returns what they are. The vector is the sender's, valid until
// the next call.
func (s *Sender) AppendHeader(dst, values []byte) (header []byte, selected *sparse.Vector, err error) {
	if len(values) != s.n*s.kind.Size() {
		return nil, nil, fmt.Errorf("slim: %w: %d bytes for %d numbers of %v", ErrLength, len(values), s.n, s.kind)
	}
	renewed := s.left == 0
	core, explorer := s.config.sizes(s.n)
	if renewed {
		s.selectCore(values, core)
		s.left = s.config.Rounds
	}
	s.explore(explorer)
	flags := byte(0)
	if renewed {
		flags |= hasCore
	}
	dst = append(dst, flags, byte(s.round))
	if renewed {
		dst = append(dst, byte(s.kind))
		dst = binary.AppendUvarint(dst, uint64(s.n))
		dst = sparse.AppendPositions(dst, s.core, s.n)
	}
	dst = sparse.AppendPositions(dst, s.explorer, s.n)
	s.out.Reset(s.kind, s.n)
	for i := range s.out.Mask {
		s.out.Mask[i] = s.core[i] | s.explorer[i]
	}
	s.out.Gather(values)
	s.round++
	s.left--
	return dst, &s.out, nil
}

// Renew has the next round choose a new core.
func (s *Sender) Renew() { s.left = 0 }

// selectCore is CoreSelection: the size largest magnitudes. What is not finite
// is larger than any number; of equals, the first are taken.
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

// explore is Exploration: size positions outside of the core, each set of them
// as likely as any other. They depend on nothing but seed and round.
func (s *Sender) explore(size int) {
	s.explorer = s.explorer.Resized(s.n)
	if size == 0 {
		return
	}
	s.source.Seed(s.config.Seed, s.round)
	random := rand.New(&s.source)
	outside := s.n - s.core.Count()
	wanted, invert := size, size > outside/2
	if invert { // fewer to leave out than to take
		wanted = outside - size
	}
	for wanted > 0 {
		i := random.IntN(s.n)
		if !s.core.Has(i) && !s.explorer.Has(i) {
			s.explorer.Set(i)
			wanted--
		}
	}
	if invert {
		for i := range s.explorer {
			s.explorer[i] = ^(s.explorer[i] | s.core[i])
		}
		if tail := s.n % 64; tail != 0 {
			s.explorer[len(s.explorer)-1] &= 1<<tail - 1
		}
	}
}
