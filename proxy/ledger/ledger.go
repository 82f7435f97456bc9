// Package ledger keeps in files what a proxy must still know of a worker's requests after a
// kill: [Ledger] is a [route.Ledger]. Package jobs opens one for each worker of its host, and
// calls it under the job's lock.
//
// A ledger has two files. That of records (record.go, file.go, save.go) has the open requests
// and the timestamps that were seen (window.go), each in a record of fixed size. Records are
// written through mapped memory: a write is there after a kill, without a system call, since
// the page cache outlives the process. Nothing is synced, because the machine's end is the
// job's end. The other file (messages.go) has whole messages.
//
// Requests and timestamps are in the process's memory too, and every question is answered
// from there; the file of records is read only by Open. A full disk, or a file that somebody
// has cut, does not end the process: it goes on without the file, [Ledger.Trouble] tells why,
// and [Ledger.Check] tries again. Such a file is removed or says that it is incomplete, so
// that the next proxy is never misled.
package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/psidecar/psidecar/proxy/route"
)

// ErrDamaged means that a file does not have what was written to it, or not everything that
// happened. Requests that come again would not be recognized.
var ErrDamaged = errors.New("the ledger is damaged")

var (
	errFull     = errors.New("the state directory has reached its limit")
	errRequests = fmt.Errorf("more than %d requests of one worker are in flight", maxRequests)
	errWindows  = errors.New("requests of more apps than a ledger can keep")
)

// Options configure a worker's ledger.
type Options struct {
	Worker  int32
	Servers int
	// Another means that an earlier ledger of the worker is lost. Timestamps then begin at a
	// random place, since those that it gave may still be in flight.
	Another bool
	// MustExist means that a missing file is damage.
	MustExist bool
	Space     *Space // nil: no limit
}

const (
	// maxRequests bounds the open requests that are in the file.
	maxRequests = 1 << 14
	// Timestamps are given out of a reserve that the header has as used: one write of it for
	// this many timestamps, and a kill never reuses one.
	reserve = 1 << 10
)

// Ledger has the requests of one worker. The caller serializes all calls.
//
// Invariants: memory has everything. While the file lacks something, trouble says what, and
// the header has flagIncomplete or the file is gone. A request or block in memory whose
// record is none is not in the file.
type Ledger struct {
	path string
	opts Options
	file *file // nil: there is none

	next, reserved uint32
	resend         bool
	split          bool                  // some request was split
	open           map[route.ID]*request // by id; in the file as far as they have a record
	windows        map[place]*window
	trouble        error  // why the file is incomplete or missing; nil: it is complete
	crowded        error  // why the file could not grow; nil again after Check
	saving         bool   // the file is being completed
	scratch        record // of writeRecord
	messages       *messages
}

// request is an open request, and its record or none.
type request struct {
	route.Kept
	record int
	more   []int // records of the owners that record has no room for; all of them, or none
}

// Open opens a worker's ledger, or makes it. Where the file cannot be made the ledger is in
// memory only, and Trouble says why. An error means that there is a file which cannot be
// used; with ErrDamaged it will never be.
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

// InMemory returns a ledger without a file, because of why. Check tries to make one.
func InMemory(path string, o Options, why error) *Ledger {
	l := newLedger(path, o)
	l.messages.clear()
	l.trouble = why
	return l
}

// newLedger returns an empty ledger without a file.
func newLedger(path string, o Options) *Ledger {
	l := &Ledger{path: path, opts: o, open: map[route.ID]*request{}, windows: map[place]*window{}, messages: newMessages(path, o.Space)}
	if o.Another {
		l.next = rand.Uint32N(uint32(route.Own))
	}
	l.reserved = l.next
	return l
}

// Trouble returns why the file does not have everything, and nil where it has. While it does
// not, open requests do not survive a kill.
func (l *Ledger) Trouble() error { return l.trouble }

// CloseFile closes the files, which stay on disk. The ledger must not be used afterwards.
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
		// The reserve ends before the counter starts over, so that "last given" stays a
		// single number.
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

// Open implements route.Ledger. The request is written before it counts as seen: after a kill
// one that is seen and not open would be taken for done, and its repetition acknowledged
// without being sent.
func (l *Ledger) Open(k route.Kept) {
	// The header says so before the first split request is there: Split decides whether a
	// repetition that is seen and not open can be passed on.
	if k.Own != 0 && !l.split {
		l.split = true
		l.writeHeader()
	}
	if l.open[k.ID] == nil {
		r := &request{Kept: k, record: none}
		// Beyond that the request is in memory only, and does not survive a kill.
		if len(l.open) < maxRequests {
			l.writeRequest(r)
		} else {
			l.lacks(errRequests)
		}
		l.open[k.ID] = r
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
		// The answers first: an answer to a request that is not open would be a riddle to the
		// next router.
		l.messages.dropAnswers(id, len(r.Owners))
		l.freeRequest(r)
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
