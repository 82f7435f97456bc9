package values

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
)

// A stream's residuals and recently sent sections are in a file of its own, so that
// they survive a kill of the proxy. Each push is one transaction of the file,
// committed before its section goes to the link. So a push that is not in the file
// has not left this proxy, and a push that is takes the same bytes again when
// PS_RESEND repeats it. Without PS_RESEND no process repeats a push that was in
// flight when a proxy was killed; the residuals from before that push are complete.
//
// The next proxy takes over the files that it finds, each in a transaction of its own
// file, which keeps a note of the source until that is removed. Which keys were
// pulled is not written: until a key is pulled again its pushes go whole.
//
// If a file has no room for a layer or a section, that is kept in memory: training
// goes on, and it is counted that a kill would lose it (ReasonMemoryOnly). A layer
// may move from the file to memory, never back.

// Uses of extents.
const (
	kindDense  mapped.Kind = 1 + iota // A: key, C: kind of number; bytes: numbers and a tail
	kindNarrow                        // A, B: range, C: kind; bytes: numbers and a tail
	kindKeys                          // as its layer, D: how many such extents came before; bytes: entries
	kindSent                          // C: timestamp, D: 1 of a push, Sum; bytes: the section
	kindTook                          // A, B: id of a file, or of values on their way, that has arrived here completely
	kindLeaves                        // A, B: its id; bytes: values on their way to another stream, a keptStream
)

const (
	// Folder is the name, in a state folder whose other names are jobs', of the folder
	// of such files.
	Folder = ".values"

	fileSuffix = ".values"
	damaged    = "damaged" // the last file that could not be read
	// unfinishedFor is how old an unfinished file must be before another proxy removes
	// it: its maker may still be at it.
	unfinishedFor = time.Minute
	entrySize     = 16
	leastKeys     = 64 // entries of an extent
	leastWide     = 1024
	// The tail of a layer's numbers: unused u32, and how many pushes there were u32. It is written outside of transactions: after a kill the count may
	// be that of a push that was not committed.
	tailSize = 8
)

// tail returns the tail of a layer's extent.
func tail(e *mapped.Extent) []byte {
	b := e.Bytes()
	return b[len(b)-tailSize:]
}

// noteAge writes the number of a layer's pushes.
func noteAge(e *mapped.Extent, l *threshold.Layer) {
	if e != nil {
		binary.NativeEndian.PutUint32(tail(e)[4:], uint32(l.Age()))
	}
}

// fileName is how the names of an owner's files begin: a hash of the owner. A random
// number follows, since a file of a proxy that was killed may still be there.
func (o *owner) fileName() string {
	return fmt.Sprintf("%016x-", xxhash.Sum64String(fmt.Sprint(o.origin, "\x00", o.node, "\x00", o.server, o.app, o.customer)))
}

// named is an owner in the form in which its file names it.
type named struct {
	Origin   string         `json:"origin"`
	Node     string         `json:"node"`
	Server   netip.AddrPort `json:"server"`
	App      int32          `json:"app"`
	Customer int32          `json:"customer"`
	Command  int64          `json:"command,omitempty"` // see commands.whose
}

// allocate returns room in the stream's file, which is made if need be; nil if there is
// no folder or no room.
func (s *stream) allocate(k mapped.Kind, t mapped.Tag, n int) *mapped.Extent {
	if s.folder == "" || s.memoryOnly {
		return nil
	}
	err := s.makeFile()
	var e *mapped.Extent
	if err == nil {
		e, err = s.file.Alloc(k, t, n)
	}
	if err != nil {
		s.lacksRoom(err)
		return nil
	}
	return e
}

// makeFile makes the stream's file with the first thing to keep. Its memory counts as
// the codec's, Take and Give being the budget's.
func (s *stream) makeFile() error {
	if s.file != nil {
		return nil
	}
	o := &s.owner
	name, err := json.Marshal(named{o.origin, o.node, o.server, o.app, o.customer, s.commands.whose()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.folder, fmt.Sprintf("%s%016x%s", o.fileName(), rand.Uint64(), fileSuffix))
	s.file, err = mapped.Create(path, mapped.Options{Name: name, Take: s.budget.reserve, Give: s.budget.give, Stepped: s.stepped})
	if err != nil {
		s.memoryOnly = true // and not tried again with each message
	}
	return err
}

// lacksRoom counts, and logs once for each stream, that something is in memory alone.
func (s *stream) lacksRoom(err error) {
	s.counts.why(ReasonMemoryOnly)
	if !s.toldRoom {
		s.toldRoom = true
		s.log.Warn("residuals of a worker would not survive a kill of this proxy; check --state-dir and --codec-memory",
			"worker", s.owner.node, "server", s.owner.server, "error", err)
	}
}

// save logs the numbers of a layer's extent before they change: those at these
// positions, all if at is nil. If there is no room for the log, the numbers change
// without: a kill before the commit could then leave them half changed, which is
// counted.
func (s *stream) save(l *threshold.Layer, e *mapped.Extent, at []uint32) {
	if e == nil {
		return
	}
	var err error
	if at == nil {
		err = s.file.Save(e, 0, l.Bytes())
	} else {
		err = s.file.SaveAt(e, at, threshold.ResidualSize(l.Kind()))
	}
	if err != nil {
		s.lacksRoom(err)
	}
}

// commit makes everything since the last commit count. The caller holds s.mu.
func (s *stream) commit() {
	if s.file != nil {
		s.file.Commit()
	}
}

// guarded calls do and reports whether it returned normally. If another process has
// truncated the stream's file, touching its mapping is a memory fault, which costs
// the residuals in the file and nothing else: until the fault do may have changed the
// stream alone. Other panics are passed on. Code that touches a layer's numbers has
// to run within guarded.
func (s *stream) guarded(do func()) (ok bool) {
	if s.file == nil && s.folder == "" {
		do()
		return true
	}
	// Set for this goroutine, and restored: without it a fault ends the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// runtime.Error of a memory fault has the address; a bug of ours does not,
		// and must not be hidden.
		if _, fault := p.(interface{ Addr() uintptr }); !fault {
			panic(p)
		}
		s.counts.why(ReasonDamaged)
		s.log.Error("residuals of a worker are lost: their file in --state-dir was truncated",
			"worker", s.owner.node, "server", s.owner.server, "error", p)
		s.lose()
	}()
	do()
	return true
}

// lose forgets everything without reading the mapping, which could fault again, and
// removes the file. Nothing refers to its memory afterwards: layers and sections are
// used under s.mu only.
func (s *stream) lose() {
	file := s.file
	s.file = nil
	for key, l := range s.dense {
		if l.extent == nil {
			s.budget.give(l.Bytes())
		}
		delete(s.dense, key)
	}
	for id, l := range s.narrow {
		s.budget.give(l.counted())
		delete(s.narrow, id)
	}
	s.forgetLocated(nil)
	s.repeats.clear(s)
	s.memoryOnly = true
	if file != nil {
		if err := file.Remove(); err != nil {
			s.log.Warn("removing the remaining file", "error", err)
		}
	}
}

// widen makes room for values more numbers of a narrow layer, by moving it to a larger
// extent if need be, and reports whether there is any. A layer that has begun in memory
// stays there.
func (s *stream) widen(l *narrowLayer, values int) bool {
	size := threshold.ResidualSize(l.Kind())
	n := (l.index.values + values) * size
	switch {
	case l.extent != nil && n+tailSize <= len(l.extent.Bytes()):
		return true
	case l.extent == nil && l.index.values > 0: // in memory, for want of room in files
		return s.budget.reserve(values * size)
	}
	e := s.allocate(kindNarrow, l.tag, max(n+n/4, leastWide)+tailSize)
	switch {
	case e == nil && l.extent == nil:
		return s.budget.reserve(values * size)
	case e == nil:
		return false
	}
	// The old extent keeps its numbers until the commit that frees it, so that a kill
	// before leads back to them.
	l.Move(e.Bytes()[:len(e.Bytes())-tailSize])
	noteAge(e, l.Layer)
	if l.extent != nil {
		s.file.Free(l.extent)
	}
	l.extent = e
	return true
}

// counted returns the bytes of the budget that a layer takes: its index and, in memory, its
// numbers. Those in the stream's file are counted with the file.
func (l *narrowLayer) counted() int {
	n := l.index.bytes()
	if l.extent == nil {
		n += l.index.values * threshold.ResidualSize(l.Kind())
	}
	return n
}

// makeRoom reserves memory for more keys of a narrow layer with values numbers together, and
// reports whether there is any. The keys are then added by addKey, and settleCount is called
// with counted, the bytes that are reserved for the layer.
func (s *stream) makeRoom(l *narrowLayer, keys, values int) (counted int, ok bool) {
	cells := keys * cellBytes
	if l.index.values+values > math.MaxInt32 || !s.budget.reserve(cells) {
		return 0, false
	}
	if !s.widen(l, values) {
		s.budget.give(cells)
		return 0, false
	}
	counted = l.counted() + cells
	if l.extent == nil {
		counted += values * threshold.ResidualSize(l.Kind())
	}
	return counted, true
}

// settleCount corrects what is counted for a layer to what it takes: addKey may have moved it to
// memory, and a message that names a key twice has room made for it twice.
func (s *stream) settleCount(l *narrowLayer, counted int) {
	s.budget.used.Add(int64(l.counted() - counted))
}

// addKey gives a key the next place in a layer, if it has none. If the file has no room
// for the key, the numbers in it would be of use to nobody, so the whole layer moves to
// memory. Its memory is counted by settleCount.
func (s *stream) addKey(l *narrowLayer, key uint64, width int) {
	if l.index.at(key).place != 0 {
		return
	}
	if !s.noteKey(l, key, uint32(width)) { // its numbers would be of use to nobody
		l.Move(make([]byte, (l.index.values+width)*threshold.ResidualSize(l.Kind())))
		s.freeNarrow(l)
	}
	l.index.add(key, width)
}

// freeNarrow frees a layer's extents.
func (s *stream) freeNarrow(l *narrowLayer) {
	s.file.Free(l.extent)
	for _, e := range l.keys {
		s.file.Free(e)
	}
	l.extent, l.keys = nil, nil
}

// noteKey writes to the file that a key has the next place in a layer; false if there
// is no room. Entries are only appended, in the order of the places, outside of
// transactions: see readNarrow for entries that were not committed.
func (s *stream) noteKey(l *narrowLayer, key uint64, width uint32) bool {
	if l.extent == nil {
		return true
	}
	n := len(l.keys)
	if n == 0 || l.entries*entrySize == len(l.keys[n-1].Bytes()) {
		t := l.tag
		t.D = uint32(n)
		// Extents of keys double, so that a layer of many keys has few of them.
		more := leastKeys
		if n > 0 {
			more = max(more, min(len(l.keys[n-1].Bytes())*2/entrySize, 1<<16))
		}
		e := s.allocate(kindKeys, t, more*entrySize)
		if e == nil {
			return false
		}
		l.keys, l.entries = append(l.keys, e), 0
	}
	putEntry(l.keys[len(l.keys)-1].Bytes()[l.entries*entrySize:], key, width)
	l.entries++
	return true
}

// An entry is a key, how many values it has, and a checksum, which is
// never 0: unused entries are zeros.
func putEntry(b []byte, key uint64, width uint32) {
	binary.NativeEndian.PutUint64(b, key)
	binary.NativeEndian.PutUint32(b[8:], width)
	binary.NativeEndian.PutUint32(b[12:], crc32.Checksum(b[:12], castagnoli)|1)
}

func entry(b []byte) (key uint64, width uint32, ok bool) {
	key, width = binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:])
	return key, width, binary.NativeEndian.Uint32(b[12:]) == crc32.Checksum(b[:12], castagnoli)|1
}

// release leaves the stream's file to the next proxy, and forgets everything that is in
// it. The caller holds s.mu.
func (s *stream) release() error {
	if s.file == nil {
		return nil
	}
	s.forgetLocated(nil)
	var err error
	s.guarded(func() {
		for key, l := range s.dense {
			if l.extent != nil {
				delete(s.dense, key)
			}
		}
		for id, l := range s.narrow {
			if l.extent != nil {
				s.budget.give(l.index.bytes())
				delete(s.narrow, id)
			}
		}
		file := s.file
		s.file = nil
		for e, sent := range s.repeats.sent {
			if sent.extent != nil {
				delete(s.repeats.sent, e)
			}
		}
		// Requests whose section is in memory stay, for Save.
		s.repeats.order = slices.DeleteFunc(s.repeats.order, func(e exchange) bool { return s.repeats.sent[e] == nil })
		err = file.Close()
	})
	return err
}
