package spare

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/psidecar/psidecar/proxy/codec/mapped"
)

const (
	// Remembered is how many pushes of each worker a store remembers.
	Remembered = 8192
	// MostWorkers is of how many workers a store remembers pushes.
	MostWorkers = 1 << 16

	leastRing  = 128 // asks; a ring grows by ringGrowth up to Remembered
	ringGrowth = 8
	ringHead   = 8
)

// ring has the timestamps of a worker's last pushes. Its extent has how many pushes there ever were
// u64, and timestamps u32: that of push n at n modulo their number. It is as long as Remembered, or
// longer than the number of pushes, or just full.
type ring struct {
	extent *mapped.Extent
	count  uint64 // as in the extent
	most   uint32 // at least as much as any timestamp that the extent has
}

// notedAsk is an ask of the push under way. larger is the extent that takes the place of the ring's
// with it; nil: none does.
type notedAsk struct {
	Ask
	larger *mapped.Extent
}

// readRing returns the ring in an extent; nil if it cannot be one.
func readRing(e *mapped.Extent) *ring {
	b := e.Bytes()
	size := (len(b) - ringHead) / 4
	if size != leastRing && size != leastRing*ringGrowth && size != Remembered || len(b) != ringHead+4*size {
		return nil
	}
	r := &ring{extent: e, count: binary.NativeEndian.Uint64(b)}
	if size < Remembered && r.count > uint64(size) {
		return nil
	}
	for i := range r.length() {
		r.most = max(r.most, r.at(i))
	}
	return r
}

// room returns how many timestamps there is room for.
func (r *ring) room() int { return (len(r.extent.Bytes()) - ringHead) / 4 }

// length returns how many timestamps there are.
func (r *ring) length() int { return int(min(r.count, uint64(r.room()))) }

func (r *ring) at(i int) uint32 { return binary.NativeEndian.Uint32(r.extent.Bytes()[ringHead+4*i:]) }

// place returns where in the extent the next timestamp goes.
func (r *ring) place() int { return ringHead + 4*int(r.count%uint64(r.room())) }

// remembers reports whether a push with this timestamp was applied.
func (r *ring) remembers(timestamp uint32) bool {
	if r == nil || timestamp > r.most {
		return false
	}
	b := r.extent.Bytes()[ringHead : ringHead+4*r.length()]
	for ; len(b) >= 4; b = b[4:] {
		if binary.NativeEndian.Uint32(b) == timestamp {
			return true
		}
	}
	return false
}

// checkAsks returns an error if there are no asks, or two of one worker.
func checkAsks(asks []Ask) error {
	if len(asks) == 0 {
		return errors.New("a push without a request")
	}
	if len(asks) == 1 {
		return nil
	}
	seen := make(map[int32]bool, len(asks))
	for _, a := range asks {
		if seen[a.Worker] {
			return fmt.Errorf("a push has two requests of worker %d", a.Worker)
		}
		seen[a.Worker] = true
	}
	return nil
}

// countApplied returns how many of the asks were applied.
func (s *Store) countApplied(asks []Ask) (n int) {
	for _, a := range asks {
		if s.rings[a.Worker].remembers(uint32(a.Timestamp)) {
			n++
		}
	}
	return n
}

// prepareAsk makes room for an ask in its worker's ring.
func (s *Store) prepareAsk(a Ask) error {
	r, size := s.rings[a.Worker], leastRing
	switch {
	case r == nil && len(s.rings)+s.newRings >= MostWorkers:
		return fmt.Errorf("%w for requests of worker %d: it has those of %d workers", ErrNoRoom, a.Worker, len(s.rings))
	case r == nil:
		s.newRings++
	case r.room() < Remembered && r.count == uint64(r.room()):
		size = r.room() * ringGrowth
	default:
		err := s.file.Save(r.extent, 0, ringHead)
		if err == nil {
			err = s.file.Save(r.extent, r.place(), 4)
		}
		if err != nil {
			return fmt.Errorf("%w for a request of worker %d: %w", ErrNoRoom, a.Worker, err)
		}
		s.noted = append(s.noted, notedAsk{Ask: a})
		return nil
	}
	e, err := s.file.Alloc(kindAsks, mapped.Tag{A: uint64(uint32(a.Worker))}, ringHead+4*size)
	if err != nil {
		return fmt.Errorf("%w for requests of worker %d: %w", ErrNoRoom, a.Worker, err)
	}
	if r != nil {
		copy(e.Bytes(), r.extent.Bytes())
		s.stepped()
	}
	s.noted = append(s.noted, notedAsk{a, e})
	return nil
}

// noteAsk writes an ask to its worker's ring.
func (s *Store) noteAsk(n *notedAsk) {
	r := s.rings[n.Worker]
	if r == nil {
		r = &ring{}
		s.rings[n.Worker] = r
	}
	if n.larger != nil {
		s.file.Free(r.extent)
		r.extent = n.larger
	}
	b := r.extent.Bytes()
	binary.NativeEndian.PutUint32(b[r.place():], uint32(n.Timestamp))
	s.stepped()
	r.count++
	r.most = max(r.most, uint32(n.Timestamp))
	binary.NativeEndian.PutUint64(b, r.count)
	s.stepped()
}
