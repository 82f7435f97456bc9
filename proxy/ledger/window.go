package ledger

import (
	"maps"
	"slices"

	"github.com/psidecar/psidecar/proxy/route"
)

// Seen timestamps are kept as bits, in blocks of blockBits, for the latest ones of each
// server and app; older ones count as seen. A block fits into a record.
const (
	blockWords = 12
	blockBits  = 64 * blockWords
	// remembered is the number of timestamps in a window, where there is room. In jobs with
	// many servers there are fewer, but minBlocks blocks at least.
	remembered = 1 << 16
	minBlocks  = 4
	// maxBlocks bounds the blocks of a ledger, as long as no window would have less than
	// minBlocks.
	maxBlocks = 1 << 16
)

// place is the server and app whose timestamps share a window.
type place struct{ server, app int32 }

// window has the blocks of a place, by number; between oldest and newest, those in which
// nothing was seen are missing. Timestamps before oldest count as seen: a worker that repeats
// a request so late would otherwise have it applied twice.
type window struct {
	oldest, newest int32
	blocks         map[int32]*block
}

// block has the bits of the timestamps from number*blockBits on.
type block struct {
	place  place
	number int32
	oldest int32 // of the window, when the block was last written
	bits   [blockWords]uint64
	record int
}

// seen reports whether a timestamp was seen, or is too old to know.
func (w *window) seen(timestamp int32) bool {
	number, i := timestamp/blockBits, timestamp%blockBits
	switch {
	case timestamp < 0 || number < w.oldest:
		return true
	case w.blocks[number] == nil:
		return false
	}
	return w.blocks[number].bits[i/64]&(1<<(i%64)) != 0
}

// maxWindows bounds the windows, and perWindow the blocks of each.
func (l *Ledger) maxWindows() int { return 2*l.opts.Servers + 2 }
func (l *Ledger) perWindow() int {
	return max(minBlocks, min(remembered/blockBits, maxBlocks/l.maxWindows()))
}

// see notes a timestamp.
func (l *Ledger) see(id route.ID) {
	at := place{id.Server, id.App}
	w := l.windows[at]
	if w == nil {
		// Jobs have one app, rarely two. Beyond the bound a request is not remembered, and the
		// ledger says that it is incomplete.
		if len(l.windows) >= l.maxWindows() {
			l.lacks(errWindows)
			return
		}
		w = &window{newest: -1, blocks: map[int32]*block{}}
		l.windows[at] = w
	}
	if w.seen(id.Timestamp) {
		return
	}
	number, i := id.Timestamp/blockBits, id.Timestamp%blockBits
	b := w.blocks[number]
	if b == nil {
		b = l.addBlock(at, w, number)
	}
	b.bits[i/64] |= 1 << (i % 64)
	// Each write of a block carries the oldest, so that it survives wherever the newest block
	// is.
	b.oldest = w.oldest
	l.writeRecord(b.record, b)
}

// addBlock adds a block. A new newest one moves the window on. Its record says which block is
// the oldest from now on, and is written before the records of older blocks are freed: a kill
// in between leaves blocks that clearLeftovers removes.
func (l *Ledger) addBlock(at place, w *window, number int32) *block {
	b := &block{place: at, number: number, record: l.allocate()}
	w.blocks[number] = b
	if number <= w.newest {
		return b
	}
	w.newest = number
	// The window has perWindow blocks at most, counted by number and not by how many exist.
	if oldest := number - int32(l.perWindow()) + 1; oldest > w.oldest {
		w.oldest, b.oldest = oldest, oldest
		l.writeRecord(b.record, b)
		for n, old := range w.blocks {
			if n < oldest {
				delete(w.blocks, n)
				l.freeRecord(old.record)
			}
		}
	}
	return b
}

// shorten drops the oldest block of the longest window, if that has more than minBlocks. On a
// full disk its record can hold an open request, which matters more than the memory of old
// timestamps.
func (l *Ledger) shorten() {
	var longest *window
	for _, w := range l.windows {
		if len(w.blocks) > minBlocks && (longest == nil || len(w.blocks) > len(longest.blocks)) {
			longest = w
		}
	}
	if longest == nil {
		return
	}
	numbers := slices.Sorted(maps.Keys(longest.blocks))
	old, newest := longest.blocks[numbers[0]], longest.blocks[numbers[len(numbers)-1]]
	longest.oldest = numbers[1]
	newest.oldest = longest.oldest
	l.writeRecord(newest.record, newest)
	delete(longest.blocks, old.number)
	l.freeRecord(old.record)
}
