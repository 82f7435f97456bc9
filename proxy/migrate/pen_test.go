package migrate

import (
	"cmp"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
)

// Parts of a world as bytes, which stand for all that they lead to: two are the
// same where their bytes are. A part is read from its bytes, changed, and written
// again.

// pen writes values.
type pen struct {
	b           []byte
	worker      int    // whose timestamps those are of which nothing else says it
	left        *names // names that stay; nil: all, as they are
	exact       bool   // nothing is left out
	used, noted names  // what is used, and what is only noted as seen
	places      map[unsafe.Pointer]int
	generations []uint32
	counting    bool // generations are collected
}

// write returns a value's bytes, and the names in it.
func write(v any, worker int, left *names, exact bool) (b []byte, used, noted names) {
	p := pen{worker: worker, left: left, exact: exact, counting: true}
	p.write(reflect.ValueOf(v).Elem())
	if len(p.generations) > 0 && !exact {
		slices.SortFunc(p.generations, func(a, b uint32) int { return cmp.Compare(int32(a-b), 0) })
		p.generations = slices.Compact(p.generations)
		p = pen{worker: worker, left: left, generations: p.generations}
		p.write(reflect.ValueOf(v).Elem())
	}
	return p.b, p.used, p.noted
}

func (p *pen) uvarint(n uint64) { p.b = binary.AppendUvarint(p.b, n) }
func (p *pen) varint(n int64)   { p.b = binary.AppendVarint(p.b, n) }

// bytes writes bytes; nil is not the same as none.
func (p *pen) bytes(b []byte) {
	if b == nil {
		p.uvarint(0)
		return
	}
	p.uvarint(uint64(len(b)) + 1)
	p.b = append(p.b, b...)
}

// timestamp writes one of the worker's.
func (p *pen) timestamp(t int32) { p.varint(int64(p.renamed(p.worker, t))) }

// renamed notes a timestamp's name as used, and returns the timestamp under its
// new name.
func (p *pen) renamed(worker int, t int32) int32 {
	if t <= 0 || t == pslite.Empty {
		return t
	}
	sort, number := ofWorker(worker, t)
	p.used.add(sort, number)
	return t - int32(number) + int32(p.left.rename(sort, number))
}

func (p *pen) signature(s uint64) uint64 {
	worker, t := ofSignature(s)
	return s - uint64(t)<<1 + uint64(p.renamed(worker, t))<<1
}

// batch writes the number of a site's batch.
func (p *pen) batch(mover string, number uint64) {
	if mover == "" { // a message about none
		p.uvarint(number)
		return
	}
	sort := batchNames + slices.Index(siteNames[:], mover)
	p.used.add(sort, number)
	p.uvarint(p.left.rename(sort, number))
}

// frames writes a message's frames.
func (p *pen) frames(all [][]byte) {
	if all == nil {
		p.uvarint(0)
		return
	}
	p.uvarint(uint64(len(all)) + 1)
	for i, f := range all {
		if i == 0 {
			f = p.meta(f)
		}
		p.bytes(f)
	}
}

// meta returns a message's first frame under its new names.
func (p *pen) meta(frame []byte) []byte {
	var m pslite.Meta
	if err := m.Decode(frame, pslite.DMLC); err != nil {
		panic(err)
	}
	if m.Control.Cmd == pslite.Ack {
		m.Control.MsgSig = p.signature(m.Control.MsgSig)
	} else {
		m.Timestamp = p.renamed(p.worker, m.Timestamp)
	}
	if p.left == nil {
		return frame
	}
	return m.Append(nil, pslite.DMLC)
}

// seen writes what was seen, but for what can never come again: a message comes
// from what is on its way, or kept to be repeated, both of which use its name.
// New names are those that nothing has.
func seen[T any](p *pen, all []T, name func(T) (worker int, timestamp int32), write func(T)) {
	start := len(p.b)
	n := 0
	p.b = append(p.b, 0)
	for _, s := range all {
		worker, t := name(s)
		sort, number := ofWorker(worker, t)
		p.noted.add(sort, number)
		if !p.left.dead(sort, number) {
			used := p.used
			write(s)
			p.used = used
			n++
		}
	}
	p.b[start] = byte(n)
}

// field writes those fields that are not written as their types are, and
// reports whether it did.
func (p *pen) field(of reflect.Type, name string, v reflect.Value) bool {
	switch value := v.Interface().(type) {
	case int32:
		switch {
		case of == ledgerType && name == "Last": // follows from the names in use
			return true
		case strings.EqualFold(name, "timestamp") || value >= route.FirstOwn && value <= route.LastOwn:
			p.timestamp(value)
			return true
		}
	case uint64:
		switch {
		case of == siteType && name == "last":
			return true
		case of == sentType && name == "Signature":
			p.worker, _ = ofSignature(value)
			p.uvarint(p.signature(value))
			return true
		}
	case uint32:
		if name == "generation" {
			p.generation(value)
			return true
		}
	case []uint64:
		if name == "Seen" {
			seen(p, value, ofSignature, func(s uint64) { p.uvarint(p.signature(s)) })
			return true
		}
	case []route.ID:
		of := func(id route.ID) (int, int32) { return p.worker, id.Timestamp }
		seen(p, value, of, func(id route.ID) { p.write(reflect.ValueOf(id)) })
		return true
	case [][]byte:
		if name == "frames" || name == "Frames" || name == "whole" {
			p.frames(value)
			return true
		}
	case *pslite.Meta: // the model of a router's own messages, which have other timestamps and sizes
		if value != nil && !p.exact {
			m := *value
			m.Timestamp, m.DataSize = 0, 0
			p.write(reflect.ValueOf(&m))
			return true
		}
	}
	return false
}

func (p *pen) generation(g uint32) {
	if p.counting {
		p.generations = append(p.generations, g)
	}
	if !p.exact && !p.counting {
		g = uint32(slices.Index(p.generations, g))
	}
	p.uvarint(uint64(g))
}

var (
	ledgerType, siteType, sentType = reflect.TypeFor[memoryLedger](), reflect.TypeFor[Site](), reflect.TypeFor[sent]()
	tableType, bytesType           = reflect.TypeFor[*route.Table](), reflect.TypeFor[[]byte]()
	framesType                     = reflect.TypeFor[[][]byte]()
	batchType, movesType           = reflect.TypeFor[route.Batch](), reflect.TypeFor[map[uint64]*moving]()
)

// bare reports whether a type's values say nothing that matters: counts for
// people, and lists of keys longer than there are here.
func bare(t reflect.Type) bool {
	return t == reflect.TypeFor[route.Counts]() || t.Name() == "verdicts" || t.Name() == "ownerLists"
}

func (p *pen) write(v reflect.Value) {
	switch {
	case v.Type() == tableType:
		t := v.Interface().(*route.Table)
		p.b = append(p.b, byte(t.Owner(modelKeys[0])), byte(t.Owner(modelKeys[1])))
		return
	case v.Type() == batchType:
		b := v.Interface().(route.Batch)
		p.bytes([]byte(b.Mover))
		p.batch(b.Mover, b.Number)
		return
	case v.Type() == bytesType:
		p.bytes(v.Bytes())
		return
	case bare(v.Type()):
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		p.pointer(v)
	case reflect.Struct:
		p.structure(v)
	case reflect.Slice, reflect.Array:
		n := v.Len()
		if v.Type() == framesType && !v.IsNil() {
			n++
		}
		p.uvarint(uint64(n))
		for i := range v.Len() {
			p.element(v.Index(i))
		}
	case reflect.Map:
		p.entries(v)
	case reflect.String:
		p.bytes([]byte(v.String()))
	case reflect.Bool:
		p.b = append(p.b, 0)
		if v.Bool() {
			p.b[len(p.b)-1] = 1
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.varint(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.uvarint(v.Uint())
	case reflect.Float32:
		p.uvarint(uint64(math.Float32bits(float32(v.Float()))))
	case reflect.Func:
		if !v.IsNil() {
			panic("a function in a world")
		}
	default:
		panic("a world has a " + v.Type().String())
	}
}

// element writes what a list or map has: timestamps of the router's own are
// known by their size.
func (p *pen) element(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int32:
		if t := int32(v.Int()); t >= route.FirstOwn && t <= route.LastOwn {
			p.timestamp(t)
			return
		}
	case reflect.Uint32:
		p.generation(uint32(v.Uint()))
		return
	}
	p.write(v)
}

// pointer writes what a pointer leads to, the first time, and which of those
// before it was any other time: what is shared stays so.
func (p *pen) pointer(v reflect.Value) {
	switch {
	case v.IsNil():
		p.uvarint(0)
		return
	case v.Kind() == reflect.Interface:
		if err, ok := v.Interface().(error); ok {
			panic(err)
		}
		p.uvarint(1)
		p.write(v.Elem())
		return
	}
	if place, ok := p.places[v.UnsafePointer()]; ok {
		p.uvarint(uint64(place))
		return
	}
	if p.places == nil {
		p.places = map[unsafe.Pointer]int{}
	}
	p.places[v.UnsafePointer()] = len(p.places) + 2
	p.uvarint(1)
	p.write(v.Elem())
}

func (p *pen) structure(v reflect.Value) {
	worker := p.worker
	for i := range v.NumField() {
		f := readable(v.Field(i))
		if !p.field(v.Type(), v.Type().Field(i).Name, f) {
			p.write(f)
		}
	}
	p.worker = worker
}

// entries writes a map in the order of its keys.
func (p *pen) entries(v reflect.Value) {
	type entry struct {
		key   []byte
		value reflect.Value
	}
	entries := make([]entry, 0, v.Len())
	rest := p.b
	for it := v.MapRange(); it.Next(); {
		p.b = nil
		if v.Type() == movesType {
			p.batch(it.Value().Interface().(*moving).batch.Mover, it.Key().Uint())
		} else {
			p.element(addressable(it.Key()))
		}
		entries = append(entries, entry{p.b, it.Value()})
	}
	p.b = rest
	slices.SortFunc(entries, func(a, b entry) int { return slices.Compare(a.key, b.key) })
	if v.IsNil() {
		p.uvarint(0)
		return
	}
	p.uvarint(uint64(len(entries)) + 1)
	for _, e := range entries {
		p.b = append(p.b, e.key...)
		p.element(addressable(e.value))
	}
}

// addressable returns a copy whose fields can be read.
func addressable(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	return c
}

func readable(v reflect.Value) reflect.Value {
	if v.CanInterface() || !v.CanAddr() {
		return v
	}
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}
