package main

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/psidecar/psidecar/planner/api"
)

// versionCodec decodes plan events without the key owners of changes and snapshots. A
// proxy of a real job decodes them on a host of its own. Here a thousand would decode
// them on the machine that the planner is measured on, most of them for nothing.
type versionCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c versionCodec) Unmarshal(data mem.BufferSlice, v any) error {
	e, ok := v.(*api.PlanEvent)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	short, err := withoutOwners(buffer.ReadOnlyData())
	if err != nil {
		return fmt.Errorf("decoding a plan event: %w", err)
	}
	return proto.Unmarshal(short, e)
}

// withoutOwners returns an encoded PlanEvent without the key owners in it.
func withoutOwners(event []byte) ([]byte, error) {
	return copyFields(event, func(field []byte, number protowire.Number) ([]byte, error) {
		owners, ok := ownerFields[number]
		if !ok {
			return field, nil
		}
		_, _, tag := protowire.ConsumeTag(field)
		message, _ := protowire.ConsumeBytes(field[tag:])
		message, err := copyFields(message, func(field []byte, number protowire.Number) ([]byte, error) {
			if number == owners {
				return nil, nil
			}
			return field, nil
		})
		return protowire.AppendBytes(slices.Clip(field[:tag]), message), err
	})
}

// ownerFields are the fields of a PlanEvent that contain key owners, and the field of each that has
// them.
var ownerFields = map[protowire.Number]protowire.Number{
	numberOf(&api.PlanEvent{}, "change"):   numberOf(&api.Change{}, "displaced"),
	numberOf(&api.PlanEvent{}, "snapshot"): numberOf(&api.Snapshot{}, "displaced"),
}

func numberOf(m proto.Message, field protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(field).Number()
}

// copyFields returns the fields of an encoded message as keep returns them.
func copyFields(message []byte, keep func(field []byte, number protowire.Number) ([]byte, error)) (kept []byte, err error) {
	for len(message) > 0 {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		field, err := keep(message[:n], number)
		if err != nil {
			return nil, err
		}
		kept, message = append(kept, field...), message[n:]
	}
	return kept, nil
}
