package jobs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// journal keeps a run's owners of keys, as far as this host knows them, in a file, so that hosts
// can teach a planner whose store was lost even if all proxies were killed too. A proxy that takes
// a job up asks the other hosts and the store in any case; the journal counts only where there is
// no store to ask.
//
// The file is a sequence of records. A record is its body's size, the CRC-32C of that size, the
// CRC-32C of the body (4 bytes each, big-endian), and the body. The first record has everything,
// later ones a change each. A last record that was cut off counts as never written, since the
// change had not taken effect. A damaged one makes the whole journal worthless: what comes after it
// cannot be applied.
//
// It is written with write(2) and never synced: it has to survive the process, not the machine,
// whose boot ends the job. The caller holds job.mu.
type journal struct {
	path    string
	file    *os.File
	size    int64 // of the file
	base    int64 // of its first record
	broken  bool  // a write failed, and the file was removed
	table   *route.Table
	held    map[route.Batch][]plan.Keys
	done    []route.Batch // released last, the newest at the end; at most maxDone
	store   string        // id and version of the planner's store, as last seen
	version uint64
}

const (
	journalName = "owners"
	// journalSlack is how many bytes the changes may take, beyond twice the first record, before
	// the file is rewritten. The cost of rewriting is thus amortized.
	journalSlack = 1 << 20
	// maxDone bounds the released batches that are remembered. Another host may still hold one and
	// report that to a proxy which takes the job up; it must not be held again.
	maxDone = 256

	recordHeader  = 12
	recordWhole   = 1
	recordHeld    = 2
	recordRelease = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// beginJournal writes a new journal, in the place of one that exists. It owns table, held and done
// from then on.
func beginJournal(dir string, t *route.Table, held map[route.Batch][]plan.Keys, done []route.Batch, store string, version uint64) (*journal, error) {
	j := &journal{path: filepath.Join(dir, journalName), table: t, held: held, done: done, store: store, version: version}
	if err := j.rewrite(); err != nil {
		return nil, err
	}
	return j, nil
}

// rewrite writes everything to a new file and renames it over the old one, so that a kill leaves
// one or the other.
func (j *journal) rewrite() error {
	body := []byte{recordWhole}
	body = appendText(body, j.store)
	body = binary.AppendUvarint(body, j.version)
	body = binary.AppendUvarint(body, uint64(j.table.Servers()))
	var all []plan.Range
	j.table.All(func(r plan.Range) bool { all = append(all, r); return true })
	body = binary.AppendUvarint(body, uint64(len(all)))
	for _, r := range all {
		body = binary.AppendUvarint(body, r.First)
		body = binary.AppendUvarint(body, r.Last-r.First)
		body = binary.AppendUvarint(body, uint64(r.Owner))
	}
	body = binary.AppendUvarint(body, uint64(len(j.held)))
	for b, keys := range j.held {
		body = appendKeys(appendBatch(body, b), keys)
	}
	body = binary.AppendUvarint(body, uint64(len(j.done)))
	for _, b := range j.done {
		body = appendBatch(body, b)
	}
	f, err := os.OpenFile(j.path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("beginning a journal: %w", err)
	}
	b := appendRecord(nil, body)
	if _, err := f.Write(b); err != nil {
		return errors.Join(fmt.Errorf("beginning a journal: %w", err), f.Close(), os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), j.path); err != nil {
		return errors.Join(fmt.Errorf("beginning a journal: %w", err), f.Close())
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size, j.base = f, int64(len(b)), int64(len(b))
	return nil
}

// appendRecord appends a record with this body.
func appendRecord(dst, body []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[len(dst)-4:], castagnoli))
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(body, castagnoli))
	return append(dst, body...)
}

// appendRecord writes a record. If that fails the journal is removed: an incomplete one would teach
// the planner wrong owners.
func (j *journal) appendRecord(body []byte) {
	if j.broken {
		return
	}
	b := appendRecord(nil, body)
	_, err := j.file.Write(b)
	if err == nil {
		if j.size += int64(len(b)); j.size > journalSlack+2*j.base {
			err = j.rewrite()
		}
	}
	if err != nil {
		j.broken = true
		os.Remove(j.path)
	}
}

// Held implements [route.Keeper].
func (j *journal) Held(b route.Batch, keys []plan.Keys) {
	// A hold that comes again after its release is an echo of another host's letter. Were it
	// recorded, the journal would have the keys held forever.
	if j.held[b] != nil || slices.Contains(j.done, b) {
		return // it was released here; another host has yet to hear so
	}
	j.held[b] = keys
	j.appendRecord(appendKeys(appendBatch([]byte{recordHeld}, b), keys))
}

// Released implements [route.Keeper]. The record has the store's version too, which tells how much
// of the store's content this journal covers.
func (j *journal) Released(b route.Batch, owner int32) {
	if j.held[b] == nil {
		return
	}
	j.recordRelease(b, owner)
	body := binary.AppendVarint(appendBatch([]byte{recordRelease}, b), int64(owner))
	j.appendRecord(binary.AppendUvarint(appendText(body, j.store), j.version))
}

// recordRelease applies a release to the journal's own table.
func (j *journal) recordRelease(b route.Batch, owner int32) {
	if owner != route.Unchanged {
		for _, k := range j.held[b] {
			j.table.Set([]plan.Range{{Keys: k, Owner: owner}})
		}
	}
	delete(j.held, b)
	if j.done = append(j.done, b); len(j.done) > maxDone {
		j.done = slices.Delete(j.done, 0, len(j.done)-maxDone)
	}
}

// saw notes the store's id and version; the next record writes them.
func (j *journal) saw(store string, version uint64) { j.store, j.version = store, version }

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}

// errJournal is why nothing can be learned from a journal.
var errJournal = errors.New("the journal of key locations is damaged")

// openJournal reads the journal of another proxy of this host, and rewrites it. It returns nil
// where there is none, and an error where it is damaged.
func openJournal(dir string, servers int) (*journal, error) {
	j := &journal{path: filepath.Join(dir, journalName), held: map[route.Batch][]plan.Keys{}}
	b, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	j.size = int64(len(b))
	for len(b) > 0 {
		// A cut-off record is the last thing that a killed proxy did. route.Keeper is called before
		// the change takes effect, so nobody has acted on it.
		if len(b) < recordHeader {
			break // cut off: what comes last was not done
		}
		// The size has a checksum of its own: a damaged size would make the rest look cut off, and
		// good records be dropped.
		if crc32.Checksum(b[:4], castagnoli) != binary.BigEndian.Uint32(b[4:]) {
			return nil, fmt.Errorf("%s: %w", j.path, errJournal)
		}
		size := int64(binary.BigEndian.Uint32(b))
		if size > int64(len(b)-recordHeader) {
			break
		}
		body := b[recordHeader : recordHeader+size]
		if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[8:]) || !j.replay(body, servers) {
			return nil, fmt.Errorf("%s: %w", j.path, errJournal)
		}
		b = b[recordHeader+size:]
	}
	if j.table == nil {
		return nil, fmt.Errorf("%s: %w", j.path, errJournal)
	}
	if err := j.rewrite(); err != nil { // what was cut off is gone, too
		return nil, err
	}
	return j, nil
}

// replay applies a record, and reports whether it is well formed.
func (j *journal) replay(body []byte, servers int) bool {
	p := parser{b: body}
	switch kind := p.byte(); {
	case kind == recordWhole && j.table == nil:
		j.store, j.version = p.text(), p.uvarint()
		if n := p.uvarint(); n != uint64(servers) {
			return false
		}
		j.table = route.NewTable(servers)
		var all []plan.Range
		for range p.readCount() {
			first := p.uvarint()
			r := plan.Range{Keys: plan.Keys{First: first, Last: first + p.uvarint()}, Owner: int32(p.uvarint())}
			if p.failed || r.Last < r.First || !plan.Owns(r.Owner, servers) {
				return false
			}
			all = append(all, r)
		}
		j.table.Set(all)
		for n := p.readCount(); n > 0 && !p.failed; n-- {
			b := p.batch()
			j.held[b] = p.keys()
		}
		for n := p.readCount(); n > 0 && !p.failed; n-- {
			j.done = append(j.done, p.batch())
		}
	case kind == recordHeld && j.table != nil:
		b := p.batch()
		j.held[b] = p.keys()
	case kind == recordRelease && j.table != nil:
		b, owner := p.batch(), int32(p.varint())
		j.store, j.version = p.text(), p.uvarint()
		if p.failed || owner != route.Unchanged && !plan.Owns(owner, servers) {
			return false
		}
		j.recordRelease(b, owner)
	default:
		return false
	}
	return !p.failed && len(p.b) == 0
}
