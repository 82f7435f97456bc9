package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A page, in the byte order of the machine: magic and version (8 bytes), flags (8),
// two boundaries (8 each), length of the READY command (8) and its bytes (256),
// length of [Meta] (8), which follows in JSON.
const (
	pageSize    = 4096
	pageMagic   = 0x7073646b_00000001 // the version is in the lower half
	offFlags    = 8
	offBounds   = 16
	offReadyLen = 32
	offReady    = 40
	maxReady    = 256
	offMetaLen  = offReady + maxReady
	offMeta     = offMetaLen + 8
)

const (
	flagOff   = 1 << iota // the connection cannot be taken up again
	flagBytes             // it can be at any byte: no message counts
)

// Meta is what does not change while a connection lasts.
type Meta struct {
	// Lane: it is a link for acknowledgements. As long as it is open the other proxy
	// knows that the connections are kept.
	Lane        bool           `json:"lane,omitempty"`
	Session     ID             `json:"session"`
	Dialed      bool           `json:"dialed"` // the proxy dialed the link, and accepted the job's connection
	Client      netip.AddrPort `json:"client"`
	Destination netip.AddrPort `json:"destination"`
	Job         string         `json:"job,omitempty"`
	Origin      string         `json:"origin,omitempty"`
	Far         netip.Addr     `json:"far,omitzero"` // where links come from, of an accepted one
	SYN         uint64         `json:"syn"`          // see [SYN]
}

// Page is a page of shared memory that outlives the process, since the keeper holds its file.
// All methods but Close are safe for concurrent use: words are stored atomically, and a kill
// between two stores leaves a page that Standing can interpret.
type Page struct {
	file *os.File
	mem  []byte
	meta Meta
}

// NewPage makes a page. The magic is stored last, so that a page that a kill has left half
// written is not taken for one.
func NewPage(m Meta) (*Page, error) {
	fd, err := unix.MemfdCreate("psidecar-connection", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making a page for a connection: %w", err)
	}
	file := os.NewFile(uintptr(fd), "page")
	p, err := mapPage(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	text, err := json.Marshal(m)
	if err == nil && len(text) > pageSize-offMeta {
		err = fmt.Errorf("%d bytes do not fit", len(text))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("describing a connection: %w", err), p.Close())
	}
	p.meta = m
	copy(p.mem[offMeta:], text)
	p.word(offMetaLen).Store(uint64(len(text)))
	p.word(0).Store(pageMagic)
	return p, nil
}

// OpenPage opens the page of a previous proxy. It takes over the file, and closes it after an
// error.
func OpenPage(file *os.File) (*Page, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &s); err != nil || s.Size != pageSize {
		return nil, errors.Join(fmt.Errorf("a page of %d bytes, want %d: %w", s.Size, pageSize, err), file.Close())
	}
	p, err := mapPage(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	n := p.word(offMetaLen).Load()
	switch {
	case p.word(0).Load() != pageMagic:
		err = fmt.Errorf("a page of version %#x, this is %#x", p.word(0).Load(), uint64(pageMagic))
	case n > pageSize-offMeta:
		err = fmt.Errorf("a description of %d bytes", n)
	default:
		err = json.Unmarshal(p.mem[offMeta:offMeta+n], &p.meta)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading a page: %w", err), p.Close())
	}
	return p, nil
}

// mapPage maps the file's page.
func mapPage(file *os.File) (*Page, error) {
	if err := file.Truncate(pageSize); err != nil {
		return nil, fmt.Errorf("making a page for a connection: %w", err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping a page: %w", err)
	}
	return &Page{file: file, mem: mem}, nil
}

func (p *Page) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.mem[at])) }

// File is the page's, which stays the page's.
func (p *Page) File() *os.File { return p.file }

// Meta is what it was made with.
func (p *Page) Meta() Meta { return p.meta }

// Close unmaps the memory and closes the file. Duplicates of the file keep the page.
func (p *Page) Close() error { return errors.Join(unix.Munmap(p.mem), p.file.Close()) }

// set sets a flag. It only ever adds flags, so a compare-and-swap loop suffices.
func (p *Page) set(flag uint64) {
	for {
		before := p.word(offFlags).Load()
		if before&flag != 0 || p.word(offFlags).CompareAndSwap(before, before|flag) {
			return
		}
	}
}

func (p *Page) has(flag uint64) bool { return p.word(offFlags).Load()&flag != 0 }

// SetReady stores the body of the job process's READY command, for the codecs of the next
// link. A longer one than maxReady is not stored.
func (p *Page) SetReady(body []byte) {
	if len(body) <= maxReady {
		copy(p.mem[offReady:], body)
		p.word(offReadyLen).Store(uint64(len(body)))
	}
}

// Ready returns a copy of it; empty where none was stored.
func (p *Page) Ready() []byte {
	n := min(p.word(offReadyLen).Load(), maxReady)
	return append([]byte(nil), p.mem[offReady:offReady+n]...)
}

// noteNext stores the boundary up to which bytes are about to leave the queue, and done
// stores that they have.
func (p *Page) noteNext(at uint64) { p.word(offBounds + 8).Store(at) }
func (p *Page) done(at uint64)     { p.word(offBounds).Store(at) }

// Standing reports whether a message begins where the kernel says that the stream is
// consumed. An error means that the stream cannot be resumed from there.
func (p *Page) Standing(consumed uint64) (message bool, err error) {
	at := consumed == p.word(offBounds).Load() || consumed == p.word(offBounds+8).Load()
	switch {
	case p.has(flagOff):
		return false, errors.New("it was not kept any more")
	case !at && !p.has(flagBytes):
		return false, errors.New("a part of a message had left the kernel's queue")
	}
	return at && !p.has(flagBytes), nil
}
