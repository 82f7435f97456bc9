package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/route"
)

// ledger is a [route.Ledger] in a file that is mapped into memory: what is
// written to it is there after the process was killed, without a system call.
//
//	0     magic (8 bytes)
//	8     the last timestamp that was given
//	12    1 where the job uses PS_RESEND
//	16    how many windows there are
//	64    windows: server, app, base, 0; 16 bytes each
//	...   their bits: windowSize for each, by timestamp modulo windowSize
//	...   slots of requests under way, slotSize bytes each
type ledger struct {
	file    *os.File
	memory  []byte
	windows int // room for so many
	slots   []byte
	index   map[route.ID]int
	free    []int
	full    uint64 // requests that found no slot
}

const (
	ledgerMagic = "psidLG01"
	windowSize  = 1 << 16 // timestamps that are remembered one by one
	slotSize    = 80
	slotCount   = 1 << 14
	firstWindow = 64
)

// openLedger opens the ledger of a worker in a job with so many servers, or
// makes it.
func openLedger(path string, servers int) (*ledger, error) {
	windows := 2*servers + 2
	bits := firstWindow + 16*windows
	size := bits + windows*windowSize/8 + slotCount*slotSize
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of a ledger: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a ledger: %w", err)
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), f.Close())
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mapping the ledger %s: %w", path, err), f.Close())
	}
	l := &ledger{file: f, memory: memory, windows: windows, slots: memory[size-slotCount*slotSize:], index: map[route.ID]int{}}
	if string(memory[:8]) != ledgerMagic {
		clear(memory)
		copy(memory, ledgerMagic)
	}
	for i := slotCount - 1; i >= 0; i-- {
		if l.state(i).Load() == 0 {
			l.free = append(l.free, i)
		} else {
			l.index[l.read(i).ID] = i
		}
	}
	return l, nil
}

func (l *ledger) close() error {
	return errors.Join(unix.Munmap(l.memory), l.file.Close())
}

func (l *ledger) word(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&l.memory[at]))
}

// state is the word of a slot that is written last: 0 free, otherwise 1 and the
// flags above.
func (l *ledger) state(i int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&l.slots[i*slotSize]))
}

// Next implements route.Ledger.
func (l *ledger) Next() int32 {
	last := l.word(8)
	next := last.Load() + 1
	if next >= uint32(route.Own) {
		next = 0
	}
	last.Store(next)
	return route.FirstOwn + int32(next)
}

// Resend implements route.Ledger.
func (l *ledger) Resend() bool { return l.word(12).Load() != 0 }

// UseResend implements route.Ledger.
func (l *ledger) UseResend() { l.word(12).Store(1) }

// Open implements route.Ledger.
func (l *ledger) Open(k route.Kept) {
	l.see(k.ID)
	if _, ok := l.index[k.ID]; ok {
		return
	}
	if len(l.free) == 0 {
		l.full++
		return
	}
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	b := l.slots[i*slotSize : (i+1)*slotSize]
	for at, v := range []int32{k.ID.Server, k.ID.App, k.ID.Customer, k.ID.Timestamp, k.Own, int32(len(k.Owners))} {
		binary.LittleEndian.PutUint32(b[4+4*at:], uint32(v))
	}
	for at, o := range k.Owners {
		binary.LittleEndian.PutUint16(b[28+2*at:], uint16(o))
	}
	l.state(i).Store(1 | uint32(k.Flags)<<8)
	l.index[k.ID] = i
}

func (l *ledger) read(i int) route.Kept {
	b := l.slots[i*slotSize : (i+1)*slotSize]
	v := func(at int) int32 { return int32(binary.LittleEndian.Uint32(b[4+4*at:])) }
	k := route.Kept{
		ID:  route.ID{Server: v(0), App: v(1), Customer: v(2), Timestamp: v(3)},
		Own: v(4), Flags: route.Flags(l.state(i).Load() >> 8),
	}
	for at := range min(v(5), route.MaxOwners) {
		k.Owners = append(k.Owners, int32(binary.LittleEndian.Uint16(b[28+2*at:])))
	}
	return k
}

// Mark implements route.Ledger.
func (l *ledger) Mark(id route.ID, f route.Flags) {
	if i, ok := l.index[id]; ok {
		l.state(i).Store(1 | uint32(f)<<8)
	}
}

// Close implements route.Ledger.
func (l *ledger) Close(id route.ID) {
	if i, ok := l.index[id]; ok {
		l.state(i).Store(0)
		delete(l.index, id)
		l.free = append(l.free, i)
	}
}

// Load implements route.Ledger.
func (l *ledger) Load() (all []route.Kept) {
	for _, i := range l.index {
		all = append(all, l.read(i))
	}
	return all
}

// window returns where the window of a server and app is described and where
// its bits are; with make one is begun where there is room.
func (l *ledger) window(id route.ID, make bool) (at, bits int, ok bool) {
	used := int(l.word(16).Load())
	for w := range used {
		at := firstWindow + 16*w
		if int32(l.word(at).Load()) == id.Server && int32(l.word(at+4).Load()) == id.App {
			return at, l.bits(w), true
		}
	}
	if !make || used >= l.windows {
		return 0, 0, false
	}
	at = firstWindow + 16*used
	l.word(at).Store(uint32(id.Server))
	l.word(at + 4).Store(uint32(id.App))
	l.word(at + 8).Store(0)
	l.word(16).Store(uint32(used + 1))
	return at, l.bits(used), true
}

func (l *ledger) bits(w int) int { return firstWindow + 16*l.windows + w*windowSize/8 }

// see notes a timestamp. A window begins with those that come first, and moves
// on with those that come.
func (l *ledger) see(id route.ID) {
	at, bits, ok := l.window(id, true)
	if !ok {
		l.full++
		return
	}
	base := int32(l.word(at + 8).Load())
	if id.Timestamp < base {
		return
	}
	if past := id.Timestamp - (base + windowSize - 1); past > 0 {
		for i := range min(past, windowSize) {
			l.setBit(bits, base+i, false)
		}
		l.word(at + 8).Store(uint32(base + past))
	}
	l.setBit(bits, id.Timestamp, true)
}

func (l *ledger) setBit(bits int, timestamp int32, on bool) {
	i := int(timestamp) & (windowSize - 1)
	if on {
		l.memory[bits+i/8] |= 1 << (i % 8)
	} else {
		l.memory[bits+i/8] &^= 1 << (i % 8)
	}
}

// Seen implements route.Ledger. What is older than the window counts as seen.
func (l *ledger) Seen(id route.ID) bool {
	at, bits, ok := l.window(id, false)
	if !ok {
		return false
	}
	base := int32(l.word(at + 8).Load())
	switch {
	case id.Timestamp < base:
		return true
	case id.Timestamp-base >= windowSize:
		return false
	}
	i := int(id.Timestamp) & (windowSize - 1)
	return l.memory[bits+i/8]&(1<<(i%8)) != 0
}
