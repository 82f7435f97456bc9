package migrate

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/proxy/route"
)

// reader reads what a pen has written.
type reader struct {
	b      []byte
	places []reflect.Value
}

// read fills a value from its bytes.
func read(b []byte, into any) {
	r := reader{b: b}
	r.read(reflect.ValueOf(into).Elem())
	if len(r.b) > 0 {
		panic(fmt.Sprintf("%d bytes of a part are left", len(r.b)))
	}
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	r.b = r.b[size:]
	return n
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.b)
	r.b = r.b[size:]
	return n
}

func (r *reader) byte() byte {
	b := r.b[0]
	r.b = r.b[1:]
	return b
}

// bytes are those of the part: nobody changes them.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	b := r.b[: n-1 : n-1]
	r.b = r.b[n-1:]
	return b
}

func (r *reader) read(v reflect.Value) {
	switch {
	case v.Type() == tableType:
		v.Set(reflect.ValueOf(table([]uint8{r.byte(), r.byte()})))
		return
	case v.Type() == bytesType:
		v.SetBytes(r.bytes())
		return
	case bare(v.Type()):
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		r.pointer(v)
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if v.Type() == ledgerType && name == "Last" || v.Type() == siteType && name == "last" {
				continue
			}
			r.read(readable(v.Field(i)))
		}
	case reflect.Slice:
		if n := int(r.uvarint()); n > 0 {
			if v.Type() == framesType {
				n--
			}
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				r.read(v.Index(i))
			}
		}
	case reflect.Array:
		for i := range int(r.uvarint()) {
			r.read(v.Index(i))
		}
	case reflect.Map:
		r.entries(v)
	case reflect.String:
		v.SetString(string(r.bytes()))
	case reflect.Bool:
		v.SetBool(r.byte() != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.varint())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.uvarint())
	case reflect.Float32:
		v.SetFloat(float64(math.Float32frombits(uint32(r.uvarint()))))
	}
}

func (r *reader) pointer(v reflect.Value) {
	switch place := r.uvarint(); {
	case place == 0:
	case place > 1:
		v.Set(r.places[place-2])
	case v.Kind() == reflect.Interface: // the one kind there is
		var l *memoryLedger
		r.read(reflect.ValueOf(&l).Elem())
		v.Set(reflect.ValueOf(l))
	default:
		n := reflect.New(v.Type().Elem())
		r.places = append(r.places, n)
		v.Set(n)
		r.read(n.Elem())
	}
}

func (r *reader) entries(v reflect.Value) {
	n := int(r.uvarint()) - 1
	if n < 0 {
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), n))
	for range n {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		r.read(key)
		r.read(value)
		v.SetMapIndex(key, value)
	}
}

// table says where the two keys are.
func table(owners []uint8) *route.Table {
	var changes []plan.Range
	for i, k := range modelKeys {
		changes = append(changes, plan.Range{Keys: plan.One(k), Owner: int32(owners[i])})
	}
	t := route.NewTable(2)
	t.Set(changes)
	return t
}
