package migrate

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/route"
)

// Copies and digests of worlds, of all that their fields lead to, for the
// search through what can happen. A world is copied in part: what an action does
// not change is shared, and its digest is known.

// machine is what a crash and a copy go by: a host with what it keeps.
type machine struct {
	Site   *Site
	Ledger *memoryLedger
	Worker *modelWorker
}

// digest is 128 bits of all that matters of a world: that two of a
// billion states have the same one has a chance of less than 1 in 10^20.
type digest [2]uint64

// after returns the world that an action leads to.
func (w *world) after(a *action) *world {
	c := *w
	for i := range 2 {
		c.ToStore[i], c.ToSite[i] = slices.Clip(c.ToStore[i]), slices.Clip(c.ToSite[i])
		for s := range 2 {
			c.Up[s][i], c.Down[s][i] = slices.Clip(c.Up[s][i]), slices.Clip(c.Down[s][i])
		}
		if a.hosts>>i&1 != 0 {
			m := machine{w.Sites[i], w.Ledgers[i], w.Workers[i]}
			m = deep(reflect.ValueOf(m), map[unsafe.Pointer]reflect.Value{}).Interface().(machine)
			c.Sites[i], c.Ledgers[i], c.Workers[i] = m.Site, m.Ledger, m.Worker
		}
		if a.server == i {
			server := *w.Servers[i]
			server.Seen, server.Unacked = slices.Clip(server.Seen), slices.Clip(server.Unacked)
			c.Servers[i] = &server
		}
	}
	a.do(&c)
	return &c
}

// servers are those that an action changes, as bits.
func (a *action) servers() uint8 {
	if a.server < 0 {
		return 0
	}
	return 1 << a.server
}

// rehash computes anew the digests of the hosts and servers (bits) that have
// changed.
func (w *world) rehash(seeds [2]maphash.Seed, hosts, servers uint8) {
	for i := range 2 {
		if hosts>>i&1 != 0 {
			m := machine{w.Sites[i], w.Ledgers[i], w.Workers[i]}
			w.hosts[i] = digestOf(seeds, reflect.ValueOf(m))
		}
		if servers>>i&1 != 0 {
			w.servers[i] = digestOf(seeds, reflect.ValueOf(w.Servers[i]))
		}
	}
}

func digestOf(seeds [2]maphash.Seed, v reflect.Value) digest {
	b := encode(make([]byte, 0, 2048), v, map[unsafe.Pointer]bool{})
	return digest{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

// digest is that of the whole world; those of hosts and servers are up to date.
func (w *world) digest(seeds [2]maphash.Seed) digest {
	b := make([]byte, 0, 1024)
	for i := range 2 {
		for _, d := range []digest{w.hosts[i], w.servers[i]} {
			b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, d[0]), d[1])
		}
		b = append(b, byte(w.Owners[i]), byte(len(w.ToStore[i])), byte(len(w.ToSite[i])), byte(len(w.Told[i])))
		if b = append(b, 0); w.Asked[i] {
			b[len(b)-1] = 1
		}
		for _, o := range w.Told[i] {
			b = append(b, byte(o))
		}
		for _, r := range w.ToStore[i] {
			b = fmt.Append(b, r)
		}
		for _, m := range w.ToSite[i] {
			b = fmt.Append(b, m)
		}
		for s := range 2 {
			b = appendQueue(appendQueue(b, w.Up[s][i]), w.Down[s][i])
		}
	}
	b = fmt.Append(b, w.Moves, w.Budget, w.Number, w.Failure)
	return digest{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
}

func appendQueue(b []byte, queue [][][]byte) []byte {
	b = append(b, byte(len(queue)))
	for _, frames := range queue {
		b = append(b, byte(len(frames)))
		for _, f := range frames {
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(f))), f...)
		}
	}
	return b
}

func readable(v reflect.Value) reflect.Value {
	if v.CanInterface() || !v.CanAddr() {
		return v
	}
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

var tableType, bytesType, countsType = reflect.TypeFor[*route.Table](), reflect.TypeFor[[]byte](), reflect.TypeFor[route.Counts]()

func deep(v reflect.Value, seen map[unsafe.Pointer]reflect.Value) reflect.Value {
	switch {
	case v.Type() == bytesType:
		return v
	case v.Type() == tableType && !v.IsNil():
		return reflect.ValueOf(v.Interface().(*route.Table).Clone())
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		if c, ok := seen[v.UnsafePointer()]; ok {
			return c
		}
		c := reflect.New(v.Type().Elem())
		seen[v.UnsafePointer()] = c
		c.Elem().Set(deep(v.Elem(), seen))
		return c
	case reflect.Interface:
		if v.IsNil() {
			return v
		}
		c := reflect.New(v.Type()).Elem()
		c.Set(deep(v.Elem(), seen))
		return c
	case reflect.Struct:
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		for i := range c.NumField() {
			f := readable(c.Field(i))
			f.Set(deep(f, seen))
		}
		return c
	case reflect.Array:
		c := reflect.New(v.Type()).Elem()
		for i := range v.Len() {
			c.Index(i).Set(deep(v.Index(i), seen))
		}
		return c
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(deep(v.Index(i), seen))
		}
		return c
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			c.SetMapIndex(it.Key(), deep(it.Value(), seen))
		}
		return c
	}
	return v
}

// encode appends all that matters of a value.
func encode(b []byte, v reflect.Value, seen map[unsafe.Pointer]bool) []byte {
	switch v.Type() {
	case tableType:
		t := v.Interface().(*route.Table)
		return append(b, byte(t.Owner(modelKeys[0])), byte(t.Owner(modelKeys[1])))
	case countsType:
		return b
	case bytesType:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.Bytes()...)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(b, 0)
		}
		if v.Kind() == reflect.Pointer {
			if seen[v.UnsafePointer()] {
				return append(b, 2)
			}
			seen[v.UnsafePointer()] = true
		}
		return encode(append(b, 1), v.Elem(), seen)
	case reflect.Struct:
		for i := range v.NumField() {
			b = encode(b, readable(v.Field(i)), seen)
		}
	case reflect.Slice, reflect.Array:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = encode(b, v.Index(i), seen)
		}
	case reflect.Map: // in any order
		entries := make([]string, 0, v.Len())
		for it := v.MapRange(); it.Next(); {
			k, value := reflect.New(it.Key().Type()).Elem(), reflect.New(it.Value().Type()).Elem()
			k.Set(it.Key())
			value.Set(it.Value())
			entries = append(entries, string(encode(encode(nil, k, seen), value, seen)))
		}
		slices.Sort(entries)
		b = binary.AppendUvarint(b, uint64(len(entries)))
		for _, e := range entries {
			b = append(b, e...)
		}
	case reflect.String:
		b = append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...)
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		b = binary.AppendVarint(b, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		b = binary.AppendUvarint(b, v.Uint())
	case reflect.Float32, reflect.Float64:
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float()))
	case reflect.Func:
	default:
		panic("digest of " + v.Type().String())
	}
	return b
}
