// Package ledger keeps in a file what a proxy must still know of a worker's
// requests after it was killed: [Ledger] is a [route.Ledger].
//
// All of it is in the process's memory too; the file is only read when it is
// opened. It is written through memory that is mapped: what was written is there
// after a kill, without a system call. A disk that is full, or a file that
// somebody has cut, is no end of the process, but [Ledger.Trouble]. Package jobs
// opens one for each worker of its host.
package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/psidecar/psidecar/proxy/route"
)

// ErrDamaged says that a file does not hold what was written to it, or not all
// that happened: requests that come again would not be recognised.
var ErrDamaged = errors.New("the ledger is damaged")

var (
	errFull     = errors.New("the state folder is at its limit")
	errRequests = fmt.Errorf("more than %d requests of one worker are under way", maxRequests)
	errWindows  = errors.New("requests of more apps than a ledger can keep")
)

// Options bound a worker's ledger.
type Options struct {
	Worker  int32
	Servers int
	// Another says that another ledger of the worker is lost: timestamps begin
	// somewhere else than its did.
	Another bool
	// MustExist says that a file that is not there is lost.
	MustExist bool
	Space     *Space // nil: without a limit
}

const (
	// maxRequests is how many requests under way are kept.
	maxRequests = 1 << 14
	// timestamps are handed out from a reserve that the file has as used, so that a
	// kill never reuses one.
	reserve = 1 << 10
)

// A Ledger keeps the requests of one worker. Whoever calls it holds a lock.
//
// What it is asked is always answered from memory, which has all. While the
// file lacks something the file says so, or is not there, and trouble says why.
type Ledger struct {
	path string
	opts Options
	file *file // nil: there is none

	next, reserved uint32
	resend         bool
	split          bool // some request was
	open           map[route.ID]*request
	windows        map[place]*window
	trouble        error
	crowded        error // why the file could not grow; Check has it tried again
	saving         bool  // the file is being written again
	scratch        record
	messages       *messages
}

// request is one under way.
type request struct {
	route.Kept
	record int
}

// Open opens a worker's ledger, or makes it. Where it cannot be made it is in
// memory alone, and Trouble says why. Where one is there it is taken in, or the
// error says why not: with ErrDamaged it is of no use to anybody.
func Open(path string, o Options) (*Ledger, error) {
	l := newLedger(path, o)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) && !o.MustExist {
		l.messages.clear()
		l.save()
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening a ledger: %w", err)
	}
	if err := l.load(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrDamaged, path, err), f.Close())
	}
	if err := l.messages.open(); err != nil {
		l.messages.lost++
		l.messages.clear()
	}
	return l, nil
}

// InMemory returns a ledger that has no file, and why; Check tries to make one.
func InMemory(path string, o Options, why error) *Ledger {
	l := newLedger(path, o)
	l.messages.clear()
	l.trouble = why
	return l
}

func newLedger(path string, o Options) *Ledger {
	l := &Ledger{path: path, opts: o, open: map[route.ID]*request{}, windows: map[place]*window{}, messages: newMessages(path, o.Space)}
	if o.Another {
		l.next = rand.Uint32N(uint32(route.Own))
	}
	l.reserved = l.next
	return l
}

// Trouble says why the file does not have all that it should; nil where it has.
// While it has not, requests under way do not survive a kill.
func (l *Ledger) Trouble() error { return l.trouble }

// CloseFile ends the use of the ledger.
func (l *Ledger) CloseFile() error {
	err := l.messages.close()
	if l.file != nil {
		err = errors.Join(err, l.file.close())
		l.opts.Space.give(l.file.size())
		l.file = nil
	}
	return err
}

// Next implements route.Ledger.
func (l *Ledger) Next() int32 {
	l.next = (l.next + 1) % uint32(route.Own)
	if l.next == (l.reserved+1)%uint32(route.Own) {
		l.reserved = min(l.next+reserve, uint32(route.Own)-1)
		l.writeHeader()
	}
	return route.FirstOwn + int32(l.next)
}

// Resend implements route.Ledger.
func (l *Ledger) Resend() bool { return l.resend }

// UseResend implements route.Ledger.
func (l *Ledger) UseResend() {
	if !l.resend {
		l.resend = true
		l.messages.remove()
		l.writeHeader()
	}
}

// Open implements route.Ledger. The request is written before it counts as
// seen: one that is seen and not under way would be taken for done.
func (l *Ledger) Open(k route.Kept) {
	if k.Own != 0 && !l.split {
		l.split = true
		l.writeHeader()
	}
	if l.open[k.ID] == nil {
		r := &request{Kept: k, record: none}
		if len(l.open) < maxRequests {
			r.record = l.allocate()
		} else {
			l.lacks(errRequests)
		}
		l.open[k.ID] = r
		l.writeRecord(r.record, r)
	}
	l.see(k.ID)
}

// Mark implements route.Ledger.
func (l *Ledger) Mark(id route.ID, f route.Flags) {
	if r := l.open[id]; r != nil {
		r.Flags = f
		l.writeRecord(r.record, r)
	}
}

// In implements route.Ledger.
func (l *Ledger) In(id route.ID, answered uint32) {
	if r := l.open[id]; r != nil {
		r.In = answered
		l.writeRecord(r.record, r)
	}
}

// Close implements route.Ledger.
func (l *Ledger) Close(id route.ID) {
	if r := l.open[id]; r != nil {
		delete(l.open, id)
		l.messages.dropAnswers(id, len(r.Owners))
		l.freeRecord(r.record)
	}
}

// Load implements route.Ledger.
func (l *Ledger) Load() (all []route.Kept) {
	for _, r := range l.open {
		all = append(all, r.Kept)
	}
	return all
}

// Seen implements route.Ledger. Timestamps older than the window count as seen.
func (l *Ledger) Seen(id route.ID) bool {
	w := l.windows[place{id.Server, id.App}]
	return w != nil && w.seen(id.Timestamp)
}

// Split implements route.Ledger.
func (l *Ledger) Split() bool { return l.split }
