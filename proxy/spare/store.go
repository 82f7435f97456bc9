package spare

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
)

// Uses of extents.
const (
	kindValue mapped.Kind = 1 + iota // A: key; bytes: its value
	kindAsks                         // A: worker; bytes: see ring
)

// nextSuffix is the suffix of a store's file while what another process left is copied to it.
const nextSuffix = ".next"

// leastGrowth and mostGrowth bound by how much package mapped lets a file grow at once, which is
// otherwise a quarter of the file.
const (
	leastGrowth = 64 << 10
	mostGrowth  = 64 << 20
)

// StoreOptions of a [Store].
type StoreOptions struct {
	// Name says what the store is of. A store with another name is not taken up.
	Name []byte
	// Limit is the size of the file in bytes up to which there is room for new keys; 0: there is no
	// limit. Keys that are there can be pushed still, for which the file may grow beyond it by a step, of
	// 64 MiB at most: their log, and what is remembered of more workers, may need it.
	Limit int64
	// Stepped is called between stores, so that tests can cut a transaction anywhere; nil:
	// it is not.
	Stepped func()
}

// Store has values by key, in a file that survives a kill of the process. It is not safe for
// concurrent use.
//
// Invariants between calls: the file has no changes that are not committed. Each key of values
// and each worker of rings has one extent that counts, and there are no others. used is the
// length of the file. Once failed is set, the memory of the file is not touched any more.
type Store struct {
	path   string
	opts   StoreOptions
	lock   *os.File
	file   *mapped.File
	used   int64
	bound  bool // whether Limit is observed: while a push has new keys
	isNew  bool
	failed error

	values map[uint64]*mapped.Extent
	rings  map[int32]*ring

	// Of the push under way: the pieces whose keys are new, and their extents.
	fresh []freshValue
	// The rings that get an ask, in the order of the asks.
	noted []notedAsk
	// How many of them are of workers that have none yet.
	newRings int
}

type freshValue struct {
	piece  int
	extent *mapped.Extent
}

// OpenStore creates a store, or takes up what another process left of it. mapped.ErrInUse says that a
// process has it still. With mapped.ErrDamaged, mapped.ErrOtherBoot and mapped.ErrTaken its values are
// lost, and [RemoveStore] makes room for another. With ErrNoRoom they are still there.
func OpenStore(path string, o StoreOptions) (*Store, error) {
	lock, err := lockStore(path)
	if err != nil {
		return nil, fmt.Errorf("opening a spare server's store: %w", err)
	}
	s := &Store{path: path, opts: o, lock: lock, values: map[uint64]*mapped.Extent{}, rings: map[int32]*ring{}}
	if err := s.openFile(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a spare server's store: %w", err), s.Close())
	}
	return s, nil
}

// openFile copies what is in the file under the path to a new file and puts that in its place. A
// kill leads back to the old one, until the new one is complete.
func (s *Store) openFile() error {
	if err := removeUnfinished(s.path); err != nil {
		return err
	}
	left, err := mapped.Open(s.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.isNew = true
	case errors.Is(err, mapped.ErrDamaged) || errors.Is(err, mapped.ErrOtherBoot) || errors.Is(err, mapped.ErrTaken):
		return fmt.Errorf("its values are lost: %w", err)
	case err != nil:
		return err
	default:
		defer left.Close()
		if string(left.Name) != string(s.opts.Name) {
			return fmt.Errorf("%s is of %q, not of %q", s.path, left.Name, s.opts.Name)
		}
	}
	s.file, err = mapped.Create(s.path+nextSuffix, mapped.Options{Name: s.opts.Name, Take: s.takeBytes, Give: s.giveBytes, Stepped: s.opts.Stepped})
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	if err != nil {
		return err
	}
	if left != nil {
		err = s.guard(func() error { return s.copyLeft(left) })
	}
	if err == nil {
		s.file.Commit()
		err = os.Rename(s.path+nextSuffix, s.path)
	}
	if err != nil {
		err = errors.Join(err, removeUnfinished(s.path))
	}
	return err
}

// copyLeft copies the extents of another file.
func (s *Store) copyLeft(left *mapped.Left) error {
	for _, p := range left.All {
		e, err := s.file.Alloc(p.Kind, p.Tag, len(p.Bytes))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoRoom, err)
		}
		copy(e.Bytes(), p.Bytes)
		s.stepped()
		key, worker := p.Tag.A, int32(uint32(p.Tag.A))
		switch {
		case p.Kind == kindValue && s.values[key] == nil:
			s.values[key] = e
		case p.Kind == kindAsks && s.rings[worker] == nil:
			if s.rings[worker] = readRing(e); s.rings[worker] != nil {
				continue
			}
			fallthrough
		default:
			return fmt.Errorf("%s: %w: what it has of %d cannot be", s.path, mapped.ErrDamaged, p.Tag.A)
		}
	}
	return nil
}

func (s *Store) takeBytes(n int) bool {
	if s.bound && s.opts.Limit > 0 && s.used+int64(n) > s.opts.Limit {
		return false
	}
	s.used += int64(n)
	return true
}

func (s *Store) giveBytes(n int) { s.used -= int64(n) }

func (s *Store) stepped() {
	if s.opts.Stepped != nil {
		s.opts.Stepped()
	}
}

// IsNew reports whether there was no store under the path before.
func (s *Store) IsNew() bool { return s.isNew }

// guard calls do, which may touch the file's memory. If another process has truncated the file that
// is a fault; the values are lost then, and the store of no use any more.
func (s *Store) guard(do func() error) (err error) {
	if s.failed != nil {
		return s.failed
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// A memory fault has the address; a bug of ours does not, and must not be hidden.
		if _, fault := p.(interface{ Addr() uintptr }); !fault {
			panic(p)
		}
		s.failed = fmt.Errorf("%s: %w: it was truncated, and its values are lost", s.path, mapped.ErrDamaged)
		err = s.failed
	}()
	return do()
}

// Push adds values to those that keys have, number by number; a key that is new gets the value as it
// is. All of it happens, and is recorded for the asks, or nothing. Asks must be of different workers.
// If all were applied before, this is a repetition, and nothing is done. If some were, it is an error.
func (s *Store) Push(asks []Ask, kind element.Kind, pieces []Piece) error {
	if err := checkValues(kind, pieces); err != nil {
		return err
	}
	if err := checkAsks(asks); err != nil {
		return err
	}
	return s.guard(func() error {
		switch n := s.countApplied(asks); n {
		case 0:
		case len(asks):
			return nil
		default:
			return fmt.Errorf("%d of a push's %d requests were applied before, the others not: it cannot be applied in part", n, len(asks))
		}
		err := s.prepare(asks, pieces)
		s.bound = false
		if err == nil {
			s.apply(kind, pieces)
		} else {
			s.abandon(pieces)
		}
		clear(s.fresh)
		clear(s.noted)
		s.fresh, s.noted, s.newRings = s.fresh[:0], s.noted[:0], 0
		return err
	})
}

// prepare does what may fail: it makes extents for what is new, and logs what will change. It
// changes nothing that counts.
func (s *Store) prepare(asks []Ask, pieces []Piece) error {
	for i := range pieces {
		p := &pieces[i]
		e := s.values[p.Key]
		if e == nil {
			s.bound = true
			var err error
			if e, err = s.file.Alloc(kindValue, mapped.Tag{A: p.Key}, len(p.Value)); err != nil {
				return fmt.Errorf("%w for the %d bytes of key %d: %w", ErrNoRoom, len(p.Value), p.Key, err)
			}
			s.values[p.Key] = e
			s.fresh = append(s.fresh, freshValue{i, e})
		} else if n := len(e.Bytes()); n != len(p.Value) {
			return fmt.Errorf("a push has %d bytes for key %d, which has %d", len(p.Value), p.Key, n)
		}
		// A new value is logged too, though there is nothing to lead back to: the room for the
		// log is kept for the next push, which then does not depend on what the disk has left.
		if err := s.file.Save(e, 0, len(p.Value)); err != nil {
			return fmt.Errorf("%w to change the %d bytes of key %d: %w", ErrNoRoom, len(p.Value), p.Key, err)
		}
		s.stepped()
	}
	for _, a := range asks {
		if err := s.prepareAsk(a); err != nil {
			return err
		}
	}
	return nil
}

// apply makes the changes that prepare has made room for. It cannot fail.
func (s *Store) apply(kind element.Kind, pieces []Piece) {
	fresh := s.fresh
	for i := range pieces {
		p := &pieces[i]
		if len(fresh) > 0 && fresh[0].piece == i {
			copy(fresh[0].extent.Bytes(), p.Value)
			fresh = fresh[1:]
		} else {
			addValue(kind, s.values[p.Key].Bytes(), p.Value)
		}
		s.stepped()
	}
	for i := range s.noted {
		s.noteAsk(&s.noted[i])
	}
	s.file.Commit()
	if len(s.fresh) > 0 {
		// Frees all extents of the log but one, which the first commit has only marked.
		s.file.Commit()
	}
}

// abandon frees what prepare has made.
func (s *Store) abandon(pieces []Piece) {
	for _, f := range s.fresh {
		s.file.Free(f.extent)
		delete(s.values, pieces[f.piece].Key)
	}
	for i := range s.noted {
		s.file.Free(s.noted[i].larger)
	}
	s.file.Commit()
	s.file.Commit()
}

// Pull returns a key's value, which must not be changed and is valid until the next Push. It is
// memory of the file: see AppendValue.
func (s *Store) Pull(key uint64) (value []byte, ok bool) {
	e := s.values[key]
	if e == nil || s.failed != nil {
		return nil, false
	}
	return e.Bytes(), true
}

// AppendValue appends a copy of a key's value to dst. Unlike a use of what Pull returns, it does not end
// the process if another one has truncated the file.
func (s *Store) AppendValue(dst []byte, key uint64) ([]byte, error) {
	err := s.guard(func() error {
		e := s.values[key]
		if e == nil {
			return fmt.Errorf("key %d was not pushed to this spare server", key)
		}
		dst = append(dst, e.Bytes()...)
		return nil
	})
	return dst, err
}

// Free returns how many bytes of values still fit within the limit. It is an estimate on the safe side,
// for values of some KiB at least, and a quarter of it at most: each has a head, the file grows in steps, and it
// has room to log the largest push.
func (s *Store) Free() int64 {
	if s.opts.Limit == 0 {
		return math.MaxInt64
	}
	growth := max(leastGrowth, min(s.used/4, mostGrowth))
	return max(0, (s.opts.Limit-s.used-growth)/2)
}

// Close leaves the store to the next process.
func (s *Store) Close() error {
	var err error
	if s.file != nil {
		err = s.file.Close()
	}
	s.forgetFile()
	return errors.Join(err, s.lock.Close())
}

// Remove removes the store and closes it.
func (s *Store) Remove() error {
	return errors.Join(removeFiles(s.path), os.Remove(s.path+lockSuffix), s.Close())
}

// forgetFile forgets all that refers to the file's memory.
func (s *Store) forgetFile() {
	s.file = nil
	clear(s.values)
	clear(s.rings)
	if s.failed == nil {
		s.failed = errors.New("the spare server's store is closed")
	}
}
