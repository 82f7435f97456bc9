package values

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// left is what a stream's file has, and where it comes from.
type left struct {
	*mapped.Left
	stream keptStream
	took   map[[2]uint64]bool
}

func halves(id [16]byte) [2]uint64 {
	return [2]uint64{binary.NativeEndian.Uint64(id[:]), binary.NativeEndian.Uint64(id[8:])}
}

// readLeft makes sense of a file.
func readLeft(l *mapped.Left) (*left, error) {
	var o named
	if err := json.Unmarshal(l.Name, &o); err != nil {
		return nil, fmt.Errorf("%w: whose it is: %w", mapped.ErrDamaged, err)
	}
	all := &left{Left: l, took: map[[2]uint64]bool{}}
	k := &all.stream
	k.Origin, k.Node, k.Server, k.App, k.Customer = o.Origin, o.Node, o.Server, o.App, o.Customer
	numbers, keys := map[mapped.Tag][]byte{}, map[mapped.Tag][]mapped.Part{}
	for _, p := range l.All {
		switch p.Kind {
		case kindDense:
			if n := len(p.Bytes) - tailSize; n >= 0 {
				k.Dense = append(k.Dense, keptDense{p.Tag.A, byte(p.Tag.C), p.Bytes[n] == 1, p.Bytes[:n], ageIn(p.Bytes)})
			}
		case kindNarrow:
			if len(p.Bytes) >= tailSize {
				numbers[p.Tag] = p.Bytes
			}
		case kindKeys:
			t := p.Tag
			t.D = 0
			keys[t] = append(keys[t], p)
		case kindSent:
			k.Sent = append(k.Sent, keptSent{int32(p.Tag.C), p.Tag.D == 1, p.Tag.Sum, p.Bytes, p.Tag.A})
		case kindTook:
			all.took[[2]uint64{p.Tag.A, p.Tag.B}] = true
		}
	}
	for t, b := range numbers {
		k.Narrow = append(k.Narrow, readNarrow(t, b, keys[t]))
	}
	slices.SortFunc(k.Sent, func(a, b keptSent) int { return int(int64(a.Order) - int64(b.Order)) })
	return all, nil
}

func ageIn(b []byte) int { return int(binary.NativeEndian.Uint32(b[len(b)-4:])) }

func readNarrow(t mapped.Tag, numbers []byte, keys []mapped.Part) keptNarrow {
	n := keptNarrow{First: t.A, Last: t.B, Kind: byte(t.C), Age: ageIn(numbers)}
	numbers = numbers[:len(numbers)-tailSize]
	n.Residual = numbers
	slices.SortFunc(keys, func(a, b mapped.Part) int { return int(a.Tag.D) - int(b.Tag.D) })
	size := threshold.ResidualSize(element.Kind(t.C), false)
	place := uint32(1)
	for _, p := range keys {
		for b := p.Bytes; len(b) >= entrySize; b = b[entrySize:] {
			key, width, ok := entry(b)
			// Keys are written at once, and their numbers' room counts with the
			// commit: nothing waits of those that have none.
			if end := place - 1 + width&^pulledBit; !ok || int(end)*size > len(numbers) {
				return n
			}
			n.Keys, n.Places, n.Widths = append(n.Keys, key), append(n.Places, place), append(n.Widths, width)
			place += width &^ pulledBit
		}
	}
	return n
}

// takeOver takes up what other proxies have left in the folder whose names begin
// so, and reports how many streams there were.
func (c *Codec) takeOver(prefix string) (streams int, err error) {
	if c.folder == "" {
		return 0, nil
	}
	c.taking.Lock()
	defer c.taking.Unlock()
	entries, err := os.ReadDir(c.folder)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return 0, err
	}
	var found []*left
	took := map[[2]uint64]bool{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), fileSuffix) {
			c.removeUnfinished(e)
			continue
		}
		l, failed := c.openLeft(filepath.Join(c.folder, e.Name()))
		err = errors.Join(err, failed)
		if l != nil {
			found = append(found, l)
			for id := range l.took {
				took[id] = true
			}
		}
	}
	for _, l := range found {
		if took[halves(l.ID)] {
			err = errors.Join(err, l.Remove())
			continue
		}
		err = errors.Join(err, c.takeLeft(l))
		streams++
	}
	return streams, err
}

// removeUnfinished removes what a proxy left that was killed while it made a file.
func (c *Codec) removeUnfinished(e os.DirEntry) {
	if !strings.HasSuffix(e.Name(), mapped.Unfinished) {
		return
	}
	if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > unfinishedFor {
		if err := os.Remove(filepath.Join(c.folder, e.Name())); err != nil {
			c.log.Warn("removing an unfinished file", "error", err)
		}
	}
}

// openLeft opens a file; nil where it is in use or of no use.
func (c *Codec) openLeft(path string) (*left, error) {
	m, err := mapped.Open(path)
	var l *left
	if err == nil {
		if l, err = readLeft(m); err != nil {
			err = errors.Join(err, m.Close())
		}
	}
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, mapped.ErrInUse) || errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, mapped.ErrOtherBoot): // its worker has ended with the machine
		return nil, os.Remove(path)
	case errors.Is(err, mapped.ErrDamaged):
		c.counts.why(ReasonDamaged)
		return nil, errors.Join(fmt.Errorf("what a proxy before this one left of pushes is lost: %w; set aside as %s", err, damaged), os.Rename(path, filepath.Join(c.folder, damaged)))
	}
	return nil, err
}

// takeLeft adds what a file holds to its stream and removes the file.
func (c *Codec) takeLeft(l *left) error {
	k := &l.stream
	st := c.join(owner{k.Origin, k.Node, k.Server, k.App, k.Customer}, true)
	if st == nil {
		c.counts.why(ReasonStreams)
		return errors.Join(fmt.Errorf("what waits for %s must wait on: too many workers and servers", k.Server), l.Close())
	}
	defer c.leave(st)
	return st.take(k, halves(l.ID), l.Remove)
}

// take adds what was kept to the stream and calls remove once that is safe; a kill
// at any time leaves it in one place. Of the next proxy's files one that says it
// has taken an id counts.
func (s *stream) take(k *keptStream, id [2]uint64, remove func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := 0
	err := error(nil)
	s.guarded(func() {
		lost = s.takeUp(k)
		e := s.allocate(kindTook, mapped.Tag{A: id[0], B: id[1]}, 0)
		s.commit()
		err = remove()
		if e != nil && err == nil {
			s.file.Free(e)
			s.commit()
		}
	})
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("what waited of %d layers for %s is lost: --codec-memory has no room for it, or their keys have other lengths now", lost, k.Server))
	}
	return err
}
