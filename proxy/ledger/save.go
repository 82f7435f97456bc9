package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/psidecar/psidecar/proxy/route"
)

// A file grows by as many records as it has, between firstGrowth and maxGrowth, and on a full
// disk by leastGrowth at least.
const (
	firstGrowth = 256
	maxGrowth   = 4096
	leastGrowth = 32
	maxRecords  = maxRequests + maxBlocks
)

// create makes the file. Its header says that it is incomplete, as saving is set.
func (l *Ledger) create() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	// Charged before the file exists, so that a folder at its limit gets no further files.
	if err := l.opts.Space.reserve(headerSize); err != nil {
		return err
	}
	// Never over a file that exists: it could be a complete ledger which only cannot be read
	// at the moment.
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		l.file = &file{File: f}
		b := l.header().encode()
		if _, err = f.Write(append(b[:], make([]byte, headerSize-headerUsed)...)); err == nil {
			return nil
		}
		l.file = nil
		err = errors.Join(err, f.Close(), os.Remove(l.path))
	}
	l.opts.Space.give(headerSize)
	return err
}

// header returns the header of the present state.
func (l *Ledger) header() header {
	var flags uint32
	if l.resend {
		flags |= flagResend
	}
	if l.split {
		flags |= flagSplit
	}
	if l.trouble != nil || l.saving {
		flags |= flagIncomplete
	}
	return header{worker: l.opts.Worker, records: uint32(l.file.records), last: l.reserved, flags: flags}
}

// writeHeader writes the header, if there is a file.
func (l *Ledger) writeHeader() {
	if l.file == nil {
		return
	}
	b := l.header().encode()
	if _, err := l.file.WriteAt(b[:], 0); err != nil {
		l.lose(err)
	}
}

// writeRecord writes c into a record, or frees it where c is nil. Without a file or a record
// it does nothing.
func (l *Ledger) writeRecord(number int, c content) {
	if l.file == nil || number == none {
		return
	}
	b := &l.scratch
	// The record of another request must not show through.
	clear(b[:])
	if c != nil {
		c.encode(b)
	}
	b.seal(number)
	if err := l.file.store(number, b); err != nil {
		l.lose(err)
	}
}

// freeRecord frees a record.
func (l *Ledger) freeRecord(number int) {
	if l.file != nil && number != none {
		// On disk first: in the other order a kill could leave a record that two owners have.
		l.writeRecord(number, nil)
		if l.file != nil {
			l.file.free = append(l.file.free, number)
		}
	}
}

// writeRequest writes a request that has no record into a new one. Owners that it has no room for come first: once the
// record is there it must be whole.
func (l *Ledger) writeRequest(r *request) {
	for from := firstOwners; from < len(r.Owners); from += moreOwners {
		number := l.allocate()
		if number == none {
			break
		}
		r.more = append(r.more, number)
		l.writeRecord(number, &owners{r.ID, int32(from), r.Owners[from:min(from+moreOwners, len(r.Owners))]})
	}
	if moreRecords(len(r.Owners)) == len(r.more) {
		r.record = l.allocate()
	}
	if r.record == none {
		l.freeRequest(r)
		return
	}
	l.writeRecord(r.record, r)
}

// moreRecords returns the number of records for owners, besides the request's own.
func moreRecords(owners int) int {
	return (max(0, owners-firstOwners) + moreOwners - 1) / moreOwners
}

// freeRequest frees the records of a request, its own first.
func (l *Ledger) freeRequest(r *request) {
	l.freeRecord(r.record)
	for _, number := range r.more {
		l.freeRecord(number)
	}
	r.record, r.more = none, nil
}

// allocate returns a free record. Where there is none it grows the file, and where that fails
// it gives up old seen timestamps; if that does not help either it returns none, and the file
// says that it is incomplete.
func (l *Ledger) allocate() int {
	if l.file == nil {
		return none
	}
	if len(l.file.free) == 0 && l.crowded == nil {
		l.crowded = l.grow()
	}
	if l.file != nil && len(l.file.free) == 0 {
		l.shorten()
	}
	if l.file == nil || len(l.file.free) == 0 {
		// A record is missing from here on. crowded stays set until Check, so that not every
		// request tries to grow a full disk.
		l.lacks(l.crowded)
		return none
	}
	last := len(l.file.free) - 1
	number := l.file.free[last]
	l.file.free = l.file.free[:last]
	return number
}

// grow adds free records: fewer where there is no room for many.
func (l *Ledger) grow() (err error) {
	// The file doubles, so that growing is amortized.
	n := min(max(l.file.records, firstGrowth), maxGrowth, maxRecords-l.file.records)
	if n <= 0 {
		return fmt.Errorf("it has %d records already", l.file.records)
	}
	// Some room is better than none, down to a size below which the file would grow at every
	// request.
	for ; n >= leastGrowth; n /= 2 {
		if err = l.growBy(n); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	l.writeHeader()
	if l.file == nil {
		return l.trouble
	}
	return nil
}

// growBy adds n free records, within the folder's limit.
func (l *Ledger) growBy(n int) error {
	if err := l.opts.Space.reserve(int64(n) * recordSize); err != nil {
		return err
	}
	if err := l.file.grow(n); err != nil {
		l.opts.Space.give(int64(n) * recordSize)
		return err
	}
	return nil
}

// lacks notes that the file does not have everything, and marks it so.
func (l *Ledger) lacks(err error) {
	if l.trouble == nil {
		l.trouble = fmt.Errorf("ledger %s: %w", l.path, err)
		l.writeHeader()
	}
}

// lose gives the file up after it could not be written. It is removed, or at least made
// unreadable: it must not be taken for a complete one.
func (l *Ledger) lose(err error) {
	f := l.file
	l.file = nil
	l.trouble = fmt.Errorf("ledger %s: %w", l.path, err)
	// On a read-only or full file system removing may fail too. Without its magic nobody
	// reads the file.
	if gone := os.Remove(l.path); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		if n, err := f.WriteAt([]byte{0}, 0); n == 0 { // no magic any more
			l.trouble = errors.Join(l.trouble, gone, err)
		}
	}
	if err := f.close(); err != nil {
		l.trouble = errors.Join(l.trouble, err)
	}
	l.opts.Space.give(f.size())
}

// Check verifies that the file is still there and whole, and tries again to write what it
// lacks. It is called about every second.
func (l *Ledger) Check() {
	l.crowded = nil
	if l.file != nil {
		// Records written to a file that was removed or cut would be lost without a word.
		if err := l.file.still(l.path); err != nil {
			l.lose(err)
		}
	}
	if l.file == nil || l.trouble != nil {
		l.save()
	}
}

// save writes everything that the file lacks. Until that is done the file says that it is
// incomplete.
func (l *Ledger) save() {
	// The header is incomplete from create to the end of this function, whatever happens in
	// between.
	l.saving = true
	if l.file == nil {
		l.forgetRecords()
		if err := l.create(); err != nil {
			l.trouble, l.saving = fmt.Errorf("ledger %s: %w", l.path, err), false
			return
		}
	}
	l.trouble = nil
	for _, r := range l.open {
		// Requests matter more than old timestamps, so they are written first.
		if r.record == none && l.trouble == nil {
			l.writeRequest(r)
		}
	}
	for _, w := range l.windows {
		for _, b := range w.blocks {
			if b.record == none && l.trouble == nil {
				b.record = l.allocate()
				b.oldest = w.oldest
				l.writeRecord(b.record, b)
			}
		}
	}
	// Those beyond have no record, although nothing failed.
	if l.trouble == nil && len(l.open) > maxRequests {
		l.trouble = errRequests
	}
	l.saving = false
	l.writeHeader()
}

// forgetRecords notes that nothing is in the file.
func (l *Ledger) forgetRecords() {
	for _, r := range l.open {
		r.record, r.more = none, nil
	}
	for _, w := range l.windows {
		for _, b := range w.blocks {
			b.record = none
		}
	}
}

// load reads a file, which becomes the ledger's. Any doubt is an error: requests that are
// wrongly taken for new would be applied twice.
func (l *Ledger) load(f *os.File) error {
	head := make([]byte, headerUsed)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("its header cannot be read: %w", err)
	}
	h, err := decodeHeader(head)
	switch {
	case err != nil:
		return err
	// A file that was moved or copied by hand.
	case h.worker != l.opts.Worker:
		return fmt.Errorf("it belongs to worker %d", h.worker)
	// The requests that are missing could be any.
	case h.flags&flagIncomplete != 0:
		return errors.New("the proxy before could not write all that it should have")
	case h.records > maxRecords:
		return fmt.Errorf("it has %d records", h.records)
	}
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.Size() < headerSize {
		return errors.New("it was cut within its header")
	}
	// The whole reserve counts as given.
	l.next, l.reserved, l.resend, l.split = h.last, h.last, h.flags&flagResend != 0, h.flags&flagSplit != 0
	l.file = &file{File: f, records: int(h.records)}
	// Read into memory once, and not through the mapping: what somebody does to the file
	// meanwhile must not change what was checked.
	all := make([]byte, h.records*recordSize)
	if _, err := io.ReadFull(io.NewSectionReader(f, headerSize, int64(len(all))), all); err != nil {
		return fmt.Errorf("its %d records cannot be read: %w", h.records, err)
	}
	var more []int // records of owners
	for i := range int(h.records) {
		b := (*record)(all[i*recordSize:])
		if err := l.loadRecord(i, b); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		if b[0] == kindOwners && b.word() != beingWritten {
			more = append(more, i)
		}
	}
	for _, i := range more {
		l.loadOwners(i, (*record)(all[i*recordSize:]))
	}
	for _, r := range l.open {
		if len(r.more) != moreRecords(len(r.Owners)) {
			return fmt.Errorf("record %d: a request among %d servers, of which some are missing", r.record, len(r.Owners))
		}
	}
	if err := l.opts.Space.reserve(l.file.size()); err != nil {
		return err
	}
	if err := l.file.mapRecords(); err != nil {
		l.opts.Space.give(l.file.size())
		return err
	}
	l.clearLeftovers()
	return nil
}

// loadRecord takes up a record.
func (l *Ledger) loadRecord(number int, b *record) error {
	kind, err := b.kindOf(number)
	if err != nil {
		return err
	}
	switch kind {
	case kindFree:
		l.file.free = append(l.file.free, number)
	case kindRequest:
		r := decodeRequest(b)
		r.record = number
		l.open[r.ID] = r
	case kindBlock:
		k := decodeBlock(b)
		k.record = number
		w := l.windows[k.place]
		if w == nil {
			w = &window{newest: -1, blocks: map[int32]*block{}}
			l.windows[k.place] = w
		}
		w.blocks[k.number] = k
		// Blocks were written at different times. The latest of them has the largest oldest.
		w.oldest, w.newest = max(w.oldest, k.oldest), max(w.newest, k.number)
	case kindOwners: // once all requests are there
	default:
		return fmt.Errorf("it is of kind %d", kind)
	}
	return nil
}

// loadOwners takes up a record of owners. Those of a request that is not there a kill has left, before the request was
// written or after it was freed.
func (l *Ledger) loadOwners(number int, b *record) {
	o := owners{of: route.ID{Server: b.int(0), App: b.int(1), Customer: b.int(2), Timestamp: b.int(3)}, from: b.int(4)}
	if r := l.open[o.of]; r != nil && o.takeOwners(b, r.Owners) {
		r.more = append(r.more, number)
		return
	}
	l.file.free = append(l.file.free, number)
}

// clearLeftovers removes what a kill has left: blocks before their window's oldest, and
// records that were being written. Every record is written, so that each has a valid checksum
// from here on.
func (l *Ledger) clearLeftovers() {
	for _, w := range l.windows {
		for n, b := range w.blocks {
			if n < w.oldest {
				delete(w.blocks, n)
				l.freeRecord(b.record)
				continue
			}
			l.writeRecord(b.record, b)
		}
	}
	if l.file != nil {
		for _, number := range l.file.free {
			l.writeRecord(number, nil)
		}
	}
}
