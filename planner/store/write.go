package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// A draft collects changes of one page until flush writes them with a single update. Consecutive
// entries mostly belong to one page, so a call of Write takes few updates.
type draft struct {
	page *page
	// nil removes the entry.
	changes map[string]*record
	size    int
}

// newDraft returns a draft without changes.
func newDraft(p *page) *draft { return &draft{p, map[string]*record{}, p.size} }

// get returns the entry as it will be after the flush.
func (d *draft) get(name string) (record, bool) {
	if r, ok := d.changes[name]; ok {
		if r == nil {
			return record{}, false
		}
		return *r, true
	}
	r, ok := d.page.entries[name]
	return r, ok
}

// remove marks the entry as removed, also if the page does not have it.
func (d *draft) remove(name string) {
	if r, ok := d.get(name); ok {
		d.size -= sizeOf(name, r.value)
	}
	d.changes[name] = nil
}

// set replaces the entry or adds it, and keeps size up to date.
func (d *draft) set(name string, r record) {
	d.remove(name)
	d.changes[name] = &r
	d.size += sizeOf(name, r.value)
}

// fits reports whether a value has room on the page in place of the entry's present one. A value
// larger than pageBytes fits only on an empty page, so it gets one for itself.
func (d *draft) fits(name string, value []byte) bool {
	size := d.size
	if r, ok := d.get(name); ok {
		size -= sizeOf(name, r.value)
	}
	return size == 0 || size+sizeOf(name, value) <= pageBytes
}

// write writes entries in order. It collects changes for one page at a time and flushes them when
// the next entry belongs to another page, so that the order of entries is the order of updates. The
// caller holds s.mu.
func (s *KubeStore) write(ctx context.Context, entries []Entry) error {
	var d *draft // of one page at a time
	turn := func(p *page) error {
		if d != nil && d.page == p {
			return nil
		}
		if err := s.flush(ctx, d); err != nil {
			return err
		}
		d = newDraft(p)
		return nil
	}
	for _, e := range entries {
		at := s.at(d, e.Name)
		if e.Value == nil {
			if at == nil {
				continue
			}
			if err := turn(at); err != nil {
				return err
			}
			d.remove(e.Name)
			continue
		}
		to, err := s.room(d, at, e)
		if err != nil {
			return err
		}
		if err := turn(to); err != nil {
			return err
		}
		// The number decides between two copies of the entry, if a crash leaves both.
		s.last++
		d.set(e.Name, record{s.last, slices.Clone(e.Value)})
		if at == nil || at == to {
			continue
		}
		// The entry moves. It is written to its new page before it is removed from the old one: a
		// crash in between leaves two copies, never none.
		if err := turn(at); err != nil {
			return err
		}
		d.remove(e.Name)
	}
	return s.flush(ctx, d)
}

// at returns the page that an entry is on once the draft is flushed, or nil. The draft may be nil.
func (s *KubeStore) at(d *draft, name string) *page {
	if d != nil {
		if r, ok := d.changes[name]; ok {
			if r != nil {
				return d.page
			}
			if s.index[name] == d.page {
				return nil
			}
		}
	}
	return s.index[name]
}

// room returns the page for a new value: the entry's own page at if the value fits there, else the
// page that is being filled, else any page that is at most half full, else a new page, which is not
// in the cluster before flush. It fails with errFull at maxPages.
func (s *KubeStore) room(d *draft, at *page, e Entry) (*page, error) {
	fits := func(p *page) bool {
		if d != nil && d.page == p {
			return d.fits(e.Name, e.Value)
		}
		return newDraft(p).fits(e.Name, e.Value)
	}
	if at != nil && fits(at) {
		return at, nil
	}
	if s.fill != nil && fits(s.fill) {
		return s.fill, nil
	}
	for _, number := range s.root.Pages {
		if p := s.pages[number]; p != nil && p.size <= pageBytes/2 && fits(p) {
			s.fill = p
			return p, nil
		}
	}
	if len(s.pages) >= maxPages {
		return nil, fmt.Errorf("%w: it has %d pages (psidecar plan forget drops jobs that have ended)", errFull, len(s.pages))
	}
	// An earlier new page of this process may not be listed yet.
	number := s.root.Next
	for s.pages[number] != nil {
		number++
	}
	s.fill = &page{number: number, entries: map[string]record{}}
	s.pages[number] = s.fill
	return s.fill, nil
}

// flush writes a draft to the cluster and then applies it to memory. A new page counts from the
// moment that the root lists it: until then a crash leaves an object that the next takeover
// deletes. If flush fails it is unknown whether the cluster has the changes; Write then marks the
// store unsure. The caller holds s.mu.
func (s *KubeStore) flush(ctx context.Context, d *draft) error {
	if d == nil || len(d.changes) == 0 {
		return nil
	}
	p := d.page
	entries := maps.Clone(p.entries)
	for name, r := range d.changes {
		if r == nil {
			delete(entries, name)
		} else {
			entries[name] = *r
		}
	}
	m := s.object(p.object, s.pageName(p.number))
	m.BinaryData = map[string][]byte{pageKey: appendEntries(nil, entries)}
	created := p.object == nil
	object, err := s.putObject(ctx, m)
	if err != nil {
		return err
	}
	// entries has the content; a second copy of all pages would double the memory.
	object.BinaryData = nil
	if created {
		r := s.root
		r.Next = p.number + 1
		r.Pages = append(slices.Clone(r.Pages), p.number)
		if err := s.writeRoot(ctx, r); err != nil {
			return err
		}
	}
	p.object, p.entries, p.size = object, entries, d.size
	for name, r := range d.changes {
		switch {
		case r != nil:
			s.index[name] = p
		case s.index[name] == p:
			delete(s.index, name)
		}
	}
	return nil
}
