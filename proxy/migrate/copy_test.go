package migrate

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/psidecar/psidecar/proxy/route"
)

// Copies and digests of worlds, of all that their fields lead to, for the
// search through what can happen.

// duplicate makes a deep copy. Bytes are never changed and shared.
func duplicate(w *world) *world {
	seen := map[unsafe.Pointer]reflect.Value{}
	return deep(reflect.ValueOf(w), seen).Interface().(*world)
}

func readable(v reflect.Value) reflect.Value {
	if v.CanInterface() || !v.CanAddr() {
		return v
	}
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

var tableType, bytesType = reflect.TypeFor[*route.Table](), reflect.TypeFor[[]byte]()

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

// digest is a hash of all that matters of a world.
func digest(seed maphash.Seed, w *world) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	write(&h, reflect.ValueOf(w), map[unsafe.Pointer]bool{})
	return h.Sum64()
}

func write(h *maphash.Hash, v reflect.Value, seen map[unsafe.Pointer]bool) {
	if v.Type() == tableType {
		t := v.Interface().(*route.Table)
		h.WriteString(fmt.Sprint(t.Owner(modelKeys[0]), t.Owner(modelKeys[1])))
		return
	}
	if v.Type() == reflect.TypeFor[route.Counts]() {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			h.WriteByte(0)
			return
		}
		if v.Kind() == reflect.Pointer {
			if seen[v.UnsafePointer()] {
				h.WriteByte(2)
				return
			}
			seen[v.UnsafePointer()] = true
		}
		write(h, v.Elem(), seen)
	case reflect.Struct:
		for i := range v.NumField() {
			write(h, readable(v.Field(i)), seen)
		}
	case reflect.Slice:
		if v.Type() == bytesType {
			h.Write(v.Bytes())
		}
		fallthrough
	case reflect.Array:
		h.WriteString(strconv.Itoa(v.Len()))
		if v.Type() == bytesType {
			return
		}
		for i := range v.Len() {
			write(h, v.Index(i), seen)
		}
	case reflect.Map:
		// The order of a map's entries does not count.
		sum := uint64(0)
		for it := v.MapRange(); it.Next(); {
			var e maphash.Hash
			e.SetSeed(h.Seed())
			k := reflect.New(it.Key().Type()).Elem()
			k.Set(it.Key())
			write(&e, k, seen)
			value := reflect.New(it.Value().Type()).Elem()
			value.Set(it.Value())
			write(&e, value, seen)
			sum += e.Sum64()
		}
		h.WriteString(strconv.FormatUint(sum, 36))
	case reflect.String:
		h.WriteString(v.String() + ";")
	case reflect.Bool:
		h.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		h.WriteString(strconv.FormatInt(v.Int(), 36) + ";")
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		h.WriteString(strconv.FormatUint(v.Uint(), 36) + ";")
	case reflect.Float32, reflect.Float64:
		h.WriteString(strconv.FormatFloat(v.Float(), 'g', -1, 64) + ";")
	case reflect.Func:
	default:
		panic("digest of " + v.Type().String())
	}
}
