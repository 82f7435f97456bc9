package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// A PlacementWriter writes a placement key by key, for placements that do not fit in memory. It
// packs keys into runs as [NewPlacement] does, and the result is the same. It holds at most about
// two runs.
type PlacementWriter struct {
	w    io.Writer
	runs int
	// The smallest key that may come next.
	next uint64
	k    int
	// packed is the list being packed. After it comes a streak of consecutive keys of one owner,
	// first to last, which is not in packed yet: it may become long enough for a range of its own.
	packed      PlacedRun
	first, last uint64
	owner       int32
	streak      bool
}

// NewPlacementWriter writes what p has before its runs to w.
func NewPlacementWriter(w io.Writer, p *Placement) (*PlacementWriter, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("writing a placement: %w", err)
	}
	head, err := json.Marshal(fileJSON{Version: PlacementVersion, Job: p.Job, Epoch: p.Epoch, K: p.K, Algorithm: p.Algorithm, Servers: p.Server, Runs: []runJSON{}})
	if err != nil {
		return nil, fmt.Errorf("writing a placement: %w", err)
	}
	// Cut the end of the object off; the runs go there.
	if _, err := w.Write(head[:len(head)-len("]}")]); err != nil {
		return nil, fmt.Errorf("writing a placement: %w", err)
	}
	return &PlacementWriter{w: w, k: p.K}, nil
}

// Add adds a key, which must be larger than all before, and the machine that owns it.
func (w *PlacementWriter) Add(key uint64, owner int32) error {
	switch {
	case key == math.MaxUint64:
		return fmt.Errorf("writing a placement: key 2^64-1 is beyond PS-lite's last key")
	case key < w.next:
		return fmt.Errorf("writing a placement: key %d follows key %d: want them ascending", key, w.next-1)
	case owner < 0 || int(owner) >= w.k:
		return fmt.Errorf("writing a placement: owner %d of key %d: only machines 0..%d exist", owner, key, w.k-1)
	}
	w.next = key + 1
	// A streak takes no memory, however long it is.
	if w.streak && key == w.last+1 && owner == w.owner {
		w.last = key
		return nil
	}
	err := w.endStreak()
	w.first, w.last, w.owner, w.streak = key, key, owner, true
	return err
}

// endStreak writes the streak as a range if it is long enough, and otherwise appends its keys to
// packed.
func (w *PlacementWriter) endStreak() error {
	if !w.streak {
		return nil
	}
	w.streak = false
	if w.last-w.first+1 >= runKeys/16 {
		if err := w.endPacked(); err != nil {
			return err
		}
		return w.writeRun(&PlacedRun{First: w.first, Last: w.last, Owners: []int32{w.owner}})
	}
	if len(w.packed.Keys) >= runKeys {
		if err := w.endPacked(); err != nil {
			return err
		}
	}
	for key := w.first; ; key++ {
		w.packed.Keys, w.packed.Owners = append(w.packed.Keys, key), append(w.packed.Owners, w.owner)
		if key == w.last {
			return nil
		}
	}
}

// endPacked writes the list being packed, if it has keys, and begins a new one in the same memory.
func (w *PlacementWriter) endPacked() error {
	r := &w.packed
	if len(r.Keys) == 0 {
		return nil
	}
	r.First, r.Last = r.Keys[0], r.Keys[len(r.Keys)-1]
	err := w.writeRun(r)
	r.Keys, r.Owners = r.Keys[:0], r.Owners[:0]
	return err
}

// writeRun writes one run on a line of its own. The comma goes before it, since the last run is not
// known as such.
func (w *PlacementWriter) writeRun(r *PlacedRun) error {
	line, err := json.Marshal(encode(r))
	if err != nil {
		return fmt.Errorf("writing a placement: %w", err)
	}
	before := "\n"
	if w.runs > 0 {
		before = ",\n"
	}
	w.runs++
	if _, err := w.w.Write(append([]byte(before), line...)); err != nil {
		return fmt.Errorf("writing a placement: %w", err)
	}
	return nil
}

// Close writes what is left and the end of the object. It does not close the underlying writer.
func (w *PlacementWriter) Close() error {
	if err := w.endStreak(); err != nil {
		return err
	}
	if err := w.endPacked(); err != nil {
		return err
	}
	if _, err := w.w.Write([]byte("\n]}\n")); err != nil {
		return fmt.Errorf("writing a placement: %w", err)
	}
	return nil
}
