package values

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// left is the content of a stream's file that another proxy left. The file stays
// locked until it is closed or removed, so that one proxy takes it over. stream
// refers to the copy of the file in memory; leaves are decoded from it.
type left struct {
	*mapped.Left
	stream keptStream
	leaves map[[2]uint64]*keptStream // values on their way to other streams, by id
	took   map[[2]uint64]bool        // ids of what has arrived in this file
}

// halves returns a file's id as the two words of a tag.
func halves(id [16]byte) [2]uint64 {
	return [2]uint64{binary.NativeEndian.Uint64(id[:]), binary.NativeEndian.Uint64(id[8:])}
}

// readLeft interprets the extents of a file. What it returns refers to the file's
// content in memory.
func readLeft(l *mapped.Left) (*left, error) {
	var o named
	if err := json.Unmarshal(l.Name, &o); err != nil {
		return nil, fmt.Errorf("%w: whose it is: %w", mapped.ErrDamaged, err)
	}
	all := &left{Left: l, took: map[[2]uint64]bool{}, leaves: map[[2]uint64]*keptStream{}}
	k := &all.stream
	k.Origin, k.Node, k.Server, k.App, k.Customer, k.Command = o.Origin, o.Node, o.Server, o.App, o.Customer, o.Command
	numbers, keys := map[mapped.Tag][]byte{}, map[mapped.Tag][]mapped.Part{}
	for _, p := range l.All {
		switch p.Kind {
		case kindDense:
			if n := len(p.Bytes) - tailSize; n >= 0 {
				k.Dense = append(k.Dense, keptDense{p.Tag.A, byte(p.Tag.C), p.Bytes[:n], ageIn(p.Bytes)})
			}
		case kindNarrow:
			if len(p.Bytes) >= tailSize {
				numbers[p.Tag] = p.Bytes
			}
		case kindKeys:
			// Extents of a layer's keys have its tag but for their number.
			t := p.Tag
			t.D = 0
			keys[t] = append(keys[t], p)
		case kindSent:
			k.Sent = append(k.Sent, keptSent{int32(p.Tag.C), p.Tag.D == 1, p.Tag.Sum, p.Bytes, p.Tag.A})
		case kindTook:
			all.took[[2]uint64{p.Tag.A, p.Tag.B}] = true
		case kindLeaves:
			away := &keptStream{}
			if err := gob.NewDecoder(bytes.NewReader(p.Bytes)).Decode(away); err != nil || crc32.Checksum(p.Bytes, castagnoli) != p.Tag.C {
				return nil, fmt.Errorf("%w: what is on its way to another server: %w", mapped.ErrDamaged, err)
			}
			all.leaves[[2]uint64{p.Tag.A, p.Tag.B}] = away
		}
	}
	// Keys without numbers are of a layer that moved to memory, or of a transaction
	// that was not committed.
	for t, b := range numbers {
		k.Narrow = append(k.Narrow, readNarrow(t, b, keys[t]))
	}
	slices.SortFunc(k.Sent, func(a, b keptSent) int { return int(int64(a.Order) - int64(b.Order)) })
	return all, nil
}

func ageIn(b []byte) int { return int(binary.NativeEndian.Uint32(b[len(b)-4:])) }

// readNarrow puts a narrow layer together from its numbers and its keys, which may be
// in several extents.
func readNarrow(t mapped.Tag, numbers []byte, keys []mapped.Part) keptNarrow {
	n := keptNarrow{First: t.A, Last: t.B, Kind: byte(t.C), Age: ageIn(numbers)}
	numbers = numbers[:len(numbers)-tailSize]
	n.Residual = numbers
	slices.SortFunc(keys, func(a, b mapped.Part) int { return int(a.Tag.D) - int(b.Tag.D) })
	size := threshold.ResidualSize(element.Kind(t.C))
	place := uint32(1)
	for _, p := range keys {
		for b := p.Bytes; len(b) >= entrySize; b = b[entrySize:] {
			key, width, ok := entry(b)
			// Keys are written at once, and the room for their numbers counts only with
			// the commit: nothing waits of keys that have no room.
			if end := place - 1 + width&^pulledBit; !ok || int(end)*size > len(numbers) {
				return n
			}
			n.Keys, n.Places, n.Widths = append(n.Keys, key), append(n.Places, place), append(n.Widths, width)
			place += width &^ pulledBit
		}
	}
	return n
}

// takeOver takes over what other proxies have left in the folder under names with this
// prefix, and returns how many streams there were. Files that a living proxy holds are
// skipped. One call at a time opens files.
func (c *Codec) takeOver(prefix string) (streams int, err error) {
	if c.folder == "" {
		return 0, nil
	}
	c.taking.Lock()
	defer c.taking.Unlock()
	found, err := c.openAll(prefix)
	if slices.ContainsFunc(found, func(l *left) bool { return len(l.leaves)+len(l.took) > 0 }) && prefix != "" {
		// A proxy was killed while something was on its way from one file to another,
		// which only all files together show.
		for _, l := range found {
			err = errors.Join(err, l.Close())
		}
		var failed error
		found, failed = c.openAll("")
		err = errors.Join(err, failed)
	}
	took := map[[2]uint64]bool{}
	for _, l := range found {
		maps.Copy(took, l.took)
	}
	for _, l := range sourcesFirst(found) {
		forget, failed := c.arrive(l, took)
		err = errors.Join(err, failed)
		// A proxy was killed after it had taken this file over and before it removed
		// it: another file has the note. To add it again would count its values
		// twice.
		removed := false
		remove := func() error {
			failed := l.Remove()
			removed = failed == nil
			return failed
		}
		if took[halves(l.ID)] {
			err = errors.Join(err, remove())
		} else {
			err = errors.Join(err, c.takeLeft(l, remove))
			streams++
		}
		// While the file is there its notes are, too.
		forget(removed)
	}
	c.taken.Add(uint64(streams))
	return streams, err
}

// sourcesFirst orders files so that one with a note of what has arrived in it comes after
// the file that this has come from. It is removed when its turn has come, and its notes
// are gone with it: if this proxy were killed before the source is removed, too, the next
// one would add the source's values again.
func sourcesFirst(found []*left) []*left {
	sources := map[[2]uint64]*left{}
	for _, l := range found {
		sources[halves(l.ID)] = l
		for id := range l.leaves {
			sources[id] = l
		}
	}
	ordered, seen := make([]*left, 0, len(found)), map[*left]bool{}
	var add func(l *left)
	add = func(l *left) {
		if seen[l] {
			return
		}
		seen[l] = true
		for id := range l.took {
			if source := sources[id]; source != nil {
				add(source)
			}
		}
		ordered = append(ordered, l)
	}
	for _, l := range found {
		add(l)
	}
	return ordered
}

// openAll opens the files whose names have this prefix and that no living proxy holds.
func (c *Codec) openAll(prefix string) (found []*left, err error) {
	entries, err := os.ReadDir(c.folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), fileSuffix) {
			c.removeUnfinished(e)
			continue
		}
		l, failed := c.openLeft(filepath.Join(c.folder, e.Name()))
		err = errors.Join(err, failed)
		if l != nil {
			found = append(found, l)
		}
	}
	return found, err
}

// arrive adds what was on its way from a file to other streams and has not arrived.
// Each arrival is noted in the receiving stream's file until the returned function is
// called, which is told whether the file l was removed: otherwise the notes stay, since
// without them the next takeover would add the same values again.
func (c *Codec) arrive(l *left, took map[[2]uint64]bool) (forget func(removed bool), err error) {
	var done []func(removed bool)
	for id, k := range l.leaves {
		// It has arrived in another file, which says so.
		if took[id] {
			continue
		}
		st := c.join(owner{k.Origin, k.Node, k.Server, k.App, k.Customer}, true)
		if st == nil {
			c.counts.why(ReasonStreams)
			err = errors.Join(err, fmt.Errorf("residuals for %s are lost: too many workers and servers", k.Server))
			continue
		}
		st.mu.Lock()
		n, failed := st.takeNoting(k, id)
		st.mu.Unlock()
		err = errors.Join(err, failed)
		done = append(done, func(removed bool) {
			if removed {
				st.mu.Lock()
				st.removeNote(n)
				st.mu.Unlock()
			}
			c.leave(st)
		})
	}
	return func(removed bool) {
		for _, f := range done {
			f(removed)
		}
	}, err
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

// openLeft opens a file; nil if it is in use or of no use. A damaged file is set aside,
// only the last of them, so that damage cannot fill the disk.
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
	// The proxy that has it lives, or another one is taking it over.
	case errors.Is(err, mapped.ErrInUse) || errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, mapped.ErrOtherBoot): // its worker has ended with the machine
		return nil, os.Remove(path)
	case errors.Is(err, mapped.ErrTaken): // what it held counts elsewhere
		return nil, os.Remove(path)
	case errors.Is(err, mapped.ErrDamaged):
		c.counts.why(ReasonDamaged)
		return nil, errors.Join(fmt.Errorf("residuals of a previous proxy are lost: %w; set aside as %s", err, damaged), os.Rename(path, filepath.Join(c.folder, damaged)))
	}
	return nil, err
}

// takeLeft adds what a file holds to its stream and calls remove, which removes the file.
func (c *Codec) takeLeft(l *left, remove func() error) error {
	k := &l.stream
	st := c.join(owner{k.Origin, k.Node, k.Server, k.App, k.Customer}, true)
	if st == nil {
		c.counts.why(ReasonStreams)
		return errors.Join(fmt.Errorf("residuals for %s stay held back: too many workers and servers", k.Server), l.Close())
	}
	defer c.leave(st)
	return st.adoptKept(k, halves(l.ID), remove)
}

// adoptKept adds what was kept to the stream and calls remove once that is safe. A kill
// at any time leaves it in one place or in two of which one says so: of the next
// proxy's files the one with a note of the id counts.
func (s *stream) adoptKept(k *keptStream, id [2]uint64, remove func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.takeNoting(k, id)
	failed := remove()
	if failed == nil {
		s.removeNote(n)
	}
	return errors.Join(err, failed)
}

// A note is a record, in a stream's file, that the values with some id have arrived
// there. It exists from the commit that adds the values until their source is
// removed.
type note struct {
	file   *mapped.File
	extent *mapped.Extent // nil: there was no room
}

// takeNoting adds what was kept to the stream and notes its id, in one transaction. The
// caller holds s.mu.
func (s *stream) takeNoting(k *keptStream, id [2]uint64) (n note, err error) {
	lost := 0
	s.guarded(func() {
		lost = s.takeUp(k)
		n = note{extent: s.allocate(kindTook, mapped.Tag{A: id[0], B: id[1]}, 0)}
		n.file = s.file
		s.commit()
	})
	if lost > 0 {
		err = fmt.Errorf("residuals of %d layers for %s are lost: they exceed --codec-memory, or the lengths of their keys have changed", lost, k.Server)
	}
	return n, err
}

// removeNote removes a note, unless the stream has lost the file meanwhile. The caller
// holds s.mu.
func (s *stream) removeNote(n note) {
	if n.extent != nil && n.file == s.file {
		s.guarded(func() {
			s.file.Free(n.extent)
			s.commit()
		})
	}
}
