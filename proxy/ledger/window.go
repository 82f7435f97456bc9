package ledger

import (
	"maps"
	"slices"

	"github.com/psidecar/psidecar/proxy/route"
)

// Seen timestamps are kept one by one, in blocks of blockBits, for the last ones of
// each server and app: older ones count as seen.
const (
	blockWords = 12
	blockBits  = 64 * blockWords
	// remembered is how many timestamps a server's window has where there is
	// room: fewer in jobs with many servers, minBlocks blocks at least.
	remembered = 1 << 16
	minBlocks  = 4
	// maxBlocks is how many blocks a ledger has at most while no window has to be
	// shorter than minBlocks.
	maxBlocks = 1 << 16
)

// place is whose timestamps count together.
type place struct{ server, app int32 }

// window is the blocks of a place. Those from oldest to newest are in blocks,
// unless nothing was seen in them.
type window struct {
	oldest, newest int32
	blocks         map[int32]*block
}

// block has the timestamps from number x blockBits on.
type block struct {
	place  place
	number int32
	oldest int32 // of the window, when this was written last
	bits   [blockWords]uint64
	record int
}

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

// maxWindows is how many windows there are at most, and perWindow how many
// blocks each.
func (l *Ledger) maxWindows() int { return 2*l.opts.Servers + 2 }
func (l *Ledger) perWindow() int {
	return max(minBlocks, min(remembered/blockBits, maxBlocks/l.maxWindows()))
}

// see notes a timestamp. A window moves on with those that come.
func (l *Ledger) see(id route.ID) {
	at := place{id.Server, id.App}
	w := l.windows[at]
	if w == nil {
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
	b.oldest = w.oldest
	l.writeRecord(b.record, b)
}

// addBlock begins a block. The newest says which is the oldest from now on; only
// when that is written the records of those before are free.
func (l *Ledger) addBlock(at place, w *window, number int32) *block {
	b := &block{place: at, number: number, record: l.allocate()}
	w.blocks[number] = b
	if number <= w.newest {
		return b
	}
	w.newest = number
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

// shorten drops the oldest block of the window that has the most, where it has more
// than it must: on a full disk that makes room for new records.
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
