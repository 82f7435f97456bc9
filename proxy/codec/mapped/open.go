package mapped

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func putUint32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }
func putUint64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }
func getUint32(b []byte) uint32    { return binary.NativeEndian.Uint32(b) }
func getUint64(b []byte) uint64    { return binary.NativeEndian.Uint64(b) }
func newID() (id [16]byte)         { rand.Read(id[:]); return id }

// bootID identifies the time since the machine was started.
func bootID() (id [16]byte, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		var b []byte
		if b, err = hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")); err == nil {
			copy(id[:], b)
		}
	}
	if err != nil {
		err = fmt.Errorf("which boot this is: %w", err)
	}
	return id, err
}

// Left is what a process has left in a file, as of its last commit. Nothing of the file is
// mapped: All refers to a copy in memory.
type Left struct {
	ID   [16]byte
	Name []byte
	// All is its extents that count, in the order of their places.
	All  []Part
	path string
	file *os.File
}

// Part is an extent of a file that is read.
type Part struct {
	Kind  Kind
	Tag   Tag
	Bytes []byte
}

// Open reads a file that its process has left, in whatever way, and locks it until Close.
// ErrInUse says that its process still has it; with ErrDamaged, ErrOtherBoot or ErrTaken the file
// is of no use to anybody. It takes as much memory as the file is long.
func Open(path string) (*Left, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := &Left{path: path, file: f}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err == nil {
		err = linked(f)
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(f)
	}
	if err == nil {
		err = l.read(text)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return l, nil
}

// linked is [os.ErrNotExist] where the file was removed: between our opening and locking it
// another process may have taken it over.
func linked(f *os.File) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return err
	}
	if s.Nlink == 0 {
		return fmt.Errorf("it was removed meanwhile: %w", os.ErrNotExist)
	}
	return nil
}

// Close unlocks the file for others.
func (l *Left) Close() error { return l.file.Close() }

// Remove removes the file and closes it. Where the folder does not let it be removed, it is marked,
// which is an error too: from then on Open returns ErrTaken, and nobody adds up what it held twice.
func (l *Left) Remove() error {
	err := os.Remove(l.path)
	if err != nil {
		_, failed := l.file.WriteAt([]byte(takenMagic), 0)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, l.file.Close())
}

// content is a file's extents while it is read.
type content struct {
	all  []*found
	at   map[int64]*found
	undo []*found
}

type found struct {
	Part
	tag  Tag
	room []byte
	live bool
}

// read checks the first page, then finds the extents, then undoes what the transaction
// after the last commit has changed, and only then collects what counts.
func (l *Left) read(text []byte) error {
	if len(text) >= len(takenMagic) && string(text[:len(takenMagic)]) == takenMagic {
		return ErrTaken
	}
	if len(text) < pageSize || string(text[:8]) != magic {
		return fmt.Errorf("%w: it does not begin as such files do", ErrDamaged)
	}
	if crcOf(text[:crcAt]) != getUint32(text[crcAt:]) {
		return fmt.Errorf("%w: its first page does not fit its checksum", ErrDamaged)
	}
	copy(l.ID[:], text[8:])
	n := getUint32(text[40:])
	if n > mostName {
		return fmt.Errorf("%w: its name has %d bytes", ErrDamaged, n)
	}
	l.Name = text[nameAt : nameAt+n]
	// A page that is intact but of another boot is not damaged, only useless.
	boot, err := bootID()
	if err != nil {
		return err
	}
	if string(text[24:40]) != string(boot[:]) {
		return ErrOtherBoot
	}
	commit, ok := unseal(getUint64(text[commitAt:]))
	if !ok {
		return fmt.Errorf("%w: which transaction was the last is not known", ErrDamaged)
	}
	c := &content{at: map[int64]*found{}}
	if err := c.readSegments(text, commit); err != nil {
		return err
	}
	c.undoAll(commit)
	for _, e := range c.all {
		if e.live {
			l.All = append(l.All, e.Part)
		}
	}
	return nil
}

// readSegments finds all extents that were ever completed, whether they count or not: the
// room of one that does not is part of the chain, and undo records may refer to it.
func (c *content) readSegments(text []byte, commit uint64) error {
	from := int64(pageSize)
	for i := range mostSegment {
		word := getUint64(text[segmentsAt+8*i:])
		if word == 0 {
			break
		}
		end, ok := unseal(word)
		if !ok || int64(end) < from || int64(end) > int64(len(text)) {
			return fmt.Errorf("%w: segment %d does not end where it should", ErrDamaged, i)
		}
		for at := from; at+headSize <= int64(end); {
			e, size, err := readExtent(text[at:end], at, commit)
			if err != nil {
				return err
			}
			if e == nil {
				break
			}
			c.all = append(c.all, e)
			c.at[at] = e
			if e.Kind == kindUndo {
				c.undo = append(c.undo, e)
				e.live = false
			}
			at += int64(size)
		}
		from = int64(end)
	}
	return nil
}

// readExtent reads the extent at the beginning of b; nil if none begins there.
func readExtent(b []byte, at int64, commit uint64) (e *found, size int, err error) {
	first, size64 := getUint64(b), getUint64(b[8:])
	// Room behind the last extent of a segment is zero: segments are reserved as
	// zeros, and the first word of an extent is the last that is stored.
	if first == 0 {
		return nil, 0, nil
	}
	if size64 < headSize || size64 > uint64(len(b)) || first != uint64(placeSum(at, int(size64)))|1<<32 {
		return nil, 0, fmt.Errorf("%w: an extent at byte %d does not fit its checksum", ErrDamaged, at)
	}
	size = int(size64)
	b = b[:size]
	born, ok := unseal(getUint64(b[16:]))
	var died uint64
	if dead := getUint64(b[24:]); dead != 0 && ok {
		died, ok = unseal(dead)
	}
	if !ok {
		return nil, 0, fmt.Errorf("%w: from when to when the extent at byte %d counts is not known", ErrDamaged, at)
	}
	// Born in a transaction that was committed, and not freed by one.
	e = &found{room: b[headSize:], live: born <= commit && (died == 0 || died > commit)}
	e.Kind = ^Kind(0)
	if born == never {
		return e, size, nil // was being made into something else
	}
	e.Kind = Kind(getUint32(b[32:]))
	e.tag = Tag{A: getUint64(b[40:]), B: getUint64(b[48:]), C: getUint32(b[36:]), D: getUint32(b[56:]), E: getUint32(b[60:]), Sum: getUint64(b[64:])}
	n := getUint64(b[72:])
	if describedSum(b, at) != getUint32(b[80:]) || n > uint64(len(e.room)) {
		return nil, 0, fmt.Errorf("%w: what the extent at byte %d is for does not fit its checksum", ErrDamaged, at)
	}
	e.Tag, e.Bytes = e.tag, e.room[:n]
	return e, size, nil
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
