package planner

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// What one element of a list takes in memory beside its own bytes. Slices that grow by doubling may
// have twice the capacity that they need.
const (
	// A message in a list: a pointer, in a slice that grows by doubling.
	pointer = 16
	// A string's header.
	text   = 16
	number = 8
	// A number in a list that grows by doubling.
	unpacked = 16
	// The nesting of messages that is accepted.
	deepest   = 32
	mostBytes = 1 << 40
)

// ReportCost returns an upper bound, within rounding, on the memory that a message takes once it is
// decoded from b. It allocates nothing and is linear in b. An empty message takes two bytes on the
// wire and hundreds in memory, so a bound on the wire bytes alone protects from nothing.
func ReportCost(b []byte, kind protoreflect.MessageDescriptor) (int, error) {
	return cost(b, kind, 0)
}

// cost adds up the memory of a message from its wire form. It stops counting beyond mostBytes, so
// that sums do not overflow.
func cost(b []byte, kind protoreflect.MessageDescriptor, depth int) (sum int, err error) {
	if depth > deepest {
		return 0, fmt.Errorf("%s: messages in messages, more than %d deep", kind.FullName(), deepest)
	}
	fields := kind.Fields()
	sum = sizeOf(kind)
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, fmt.Errorf("%s: %w", kind.FullName(), protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, wire, b[n:])
		if size < 0 {
			return 0, fmt.Errorf("%s, field %d: %w", kind.FullName(), number, protowire.ParseError(size))
		}
		value := b[n : n+size]
		b = b[n+size:]
		field := fields.ByNumber(number)
		// The decoder keeps a field that it does not know, or of which it does not know the wire
		// type, as its bytes.
		if field == nil || !decodes(field, wire) {
			sum += 2 * (n + size)
			continue
		}
		one, err := costOf(value, field, wire, depth)
		if err != nil {
			return 0, err
		}
		if sum += one; sum > mostBytes {
			return sum, nil
		}
	}
	return sum, nil
}

// decodes reports whether the decoder takes a field's value from that wire type. It takes numbers in
// a list one by one and packed, however the list is declared.
func decodes(field protoreflect.FieldDescriptor, wire protowire.Type) bool {
	one := protowire.VarintType
	switch field.Kind() {
	case protoreflect.GroupKind:
		return wire == protowire.StartGroupType
	case protoreflect.MessageKind, protoreflect.StringKind, protoreflect.BytesKind:
		return wire == protowire.BytesType
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		one = protowire.Fixed64Type
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		one = protowire.Fixed32Type
	}
	return wire == one || wire == protowire.BytesType && field.IsList()
}

// costOf returns the cost of one field's value of a wire type that is decoded. Of a packed list of
// varints it counts the elements by their last bytes.
func costOf(value []byte, field protoreflect.FieldDescriptor, wire protowire.Type, depth int) (int, error) {
	var body []byte
	switch wire {
	case protowire.BytesType:
		body, _ = protowire.ConsumeBytes(value)
	case protowire.StartGroupType:
		body, _ = protowire.ConsumeGroup(field.Number(), value)
	default:
		return unpacked, nil
	}
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c, err := cost(body, field.Message(), depth+1)
		return c + pointer, err
	case protoreflect.StringKind, protoreflect.BytesKind:
		return len(body) + len(body)/8 + 2*text, nil
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind,
		protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return 2 * len(body), nil
	}
	count := 0
	for _, c := range body {
		if c < 0x80 {
			count++
		}
	}
	return 2 * number * count, nil
}

// sizes caches sizeOf by the message's full name.
var sizes sync.Map // by name: int

// sizeOf returns the size of a message's Go struct, with what the allocator's size classes add.
func sizeOf(kind protoreflect.MessageDescriptor) int {
	if n, ok := sizes.Load(kind.FullName()); ok {
		return n.(int)
	}
	n := 512 // a guess, for a message that this program does not know
	if t, err := protoregistry.GlobalTypes.FindMessageByName(kind.FullName()); err == nil {
		n = int(reflect.TypeOf(t.Zero().Interface()).Elem().Size())
		n += n / 8 // the allocator's size classes
	}
	sizes.Store(kind.FullName(), n)
	return n
}

// HeldBytes returns about how many bytes of memory a decoded message holds. Parts that it shares
// with other messages are counted in each.
func HeldBytes(m proto.Message) int {
	r := m.ProtoReflect()
	return shapeOf(r.Descriptor()).held(r)
}

// A shape is what the memory of a message type consists of. It is computed once for each type:
// asking a message for all its fields takes several times as long as the few that vary.
type shape struct {
	kind protoreflect.MessageDescriptor
	size int // of the Go struct
	// The fields whose values are outside of the struct. They are set by once, since a message may
	// contain messages of its own type.
	once   sync.Once
	varied []varied
}

// A varied is a field with a value outside of its message's struct.
type varied struct {
	field protoreflect.FieldDescriptor
	list  bool
	text  bool   // strings or bytes
	of    *shape // of its messages, nil if it has none
}

// shapes caches shapeOf by the message's full name.
var shapes sync.Map // by name: *shape

func shapeOf(kind protoreflect.MessageDescriptor) *shape {
	if s, ok := shapes.Load(kind.FullName()); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(kind.FullName(), &shape{kind: kind, size: sizeOf(kind)})
	return s.(*shape)
}

// fields returns the fields that vary.
func (s *shape) fields() []varied {
	s.once.Do(func() {
		all := s.kind.Fields()
		for i := range all.Len() {
			v := varied{field: all.Get(i), list: all.Get(i).IsList()}
			switch v.field.Kind() {
			case protoreflect.MessageKind, protoreflect.GroupKind:
				v.of = shapeOf(v.field.Message())
			case protoreflect.StringKind, protoreflect.BytesKind:
				v.text = true
			}
			if v.list || v.text || v.of != nil {
				s.varied = append(s.varied, v)
			}
		}
	})
	return s.varied
}

// held returns the memory of a message of the shape.
func (s *shape) held(m protoreflect.Message) int {
	sum := s.size + len(m.GetUnknown())
	for _, v := range s.fields() {
		switch value := m.Get(v.field); {
		case v.list:
			sum += v.heldByList(value.List())
		case v.of == nil:
			sum += textBytes(v.field, value)
		case value.Message().IsValid():
			sum += v.of.held(value.Message())
		}
	}
	return sum
}

func (v *varied) heldByList(list protoreflect.List) int {
	n := list.Len()
	switch {
	case v.of != nil:
		sum := n * pointer
		for i := range n {
			sum += v.of.held(list.Get(i).Message())
		}
		return sum
	case v.text:
		sum := n * text
		for i := range n {
			sum += textBytes(v.field, list.Get(i))
		}
		return sum
	}
	return n * number
}

// textBytes returns the length of a string or of bytes.
func textBytes(field protoreflect.FieldDescriptor, v protoreflect.Value) int {
	if field.Kind() == protoreflect.BytesKind {
		return len(v.Bytes())
	}
	return len(v.String())
}
