package pslite

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/psidecar/psidecar/test/require"
)

// The protobuf definitions of each generation, for Google's own encoder to
// write what PS-lite of that time wrote. No recording of the older ones exists.

type fieldDef struct {
	name   string
	number int32
	kind   descriptorpb.FieldDescriptorProto_Type
	label  descriptorpb.FieldDescriptorProto_Label
}

const (
	optional = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
	required = descriptorpb.FieldDescriptorProto_LABEL_REQUIRED
	repeated = descriptorpb.FieldDescriptorProto_LABEL_REPEATED

	typeInt32  = descriptorpb.FieldDescriptorProto_TYPE_INT32
	typeUint64 = descriptorpb.FieldDescriptorProto_TYPE_UINT64
	typeBool   = descriptorpb.FieldDescriptorProto_TYPE_BOOL
	typeBytes  = descriptorpb.FieldDescriptorProto_TYPE_BYTES
	typeString = descriptorpb.FieldDescriptorProto_TYPE_STRING
	typeNested = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
)

// definition returns PBMeta, PBControl and PBNode of a generation.
func definition(d Dialect) (meta, control, node []fieldDef) {
	node = []fieldDef{
		{"role", 1, typeInt32, required}, {"id", 2, typeInt32, optional},
		{"hostname", 3, typeString, optional}, {"port", 4, typeInt32, optional},
		{"is_recovery", 5, typeBool, optional},
	}
	control = []fieldDef{
		{"cmd", 1, typeInt32, required}, {"node", 2, typeNested, repeated},
		{"barrier_group", 3, typeInt32, optional}, {"msg_sig", 4, typeUint64, optional},
	}
	meta = []fieldDef{
		{"head", 1, typeInt32, optional}, {"body", 2, typeBytes, optional},
		{"control", 3, typeNested, optional}, {"request", 4, typeBool, optional},
		{"push", 5, typeBool, optional}, {"simple_app", 6, typeBool, optional},
		{"timestamp", 8, typeInt32, optional}, {"data_type", 9, typeInt32, repeated},
	}
	if d == DMLC2017 {
		return append(meta, fieldDef{"customer_id", 7, typeInt32, optional}), control, node
	}
	node = append(node, fieldDef{"customer_id", 10, typeInt32, optional})
	meta = append(meta, fieldDef{"app_id", 7, typeInt32, optional},
		fieldDef{"customer_id", 10, typeInt32, optional}, fieldDef{"data_size", 11, typeInt32, optional})
	if d == DMLC {
		meta = append(meta, fieldDef{"pull", 12, typeBool, optional}, fieldDef{"priority", 13, typeInt32, optional})
	}
	return meta, control, node
}

// schema compiles the definition of a generation and returns its PBMeta.
func schema(t testing.TB, d Dialect) protoreflect.MessageDescriptor {
	t.Helper()
	meta, control, node := definition(d)
	message := func(name string, fields []fieldDef) *descriptorpb.DescriptorProto {
		m := &descriptorpb.DescriptorProto{Name: proto.String(name)}
		for _, f := range fields {
			fd := &descriptorpb.FieldDescriptorProto{Name: &f.name, Number: &f.number, Type: &f.kind, Label: &f.label}
			switch f.name {
			case "node":
				fd.TypeName = proto.String(".ps.PBNode")
			case "control":
				fd.TypeName = proto.String(".ps.PBControl")
			case "data_type":
				fd.Options = &descriptorpb.FieldOptions{Packed: proto.Bool(true)}
			}
			m.Field = append(m.Field, fd)
		}
		return m
	}
	file := require.Value(protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("meta.proto"), Package: proto.String("ps"), Syntax: proto.String("proto2"),
		MessageType: []*descriptorpb.DescriptorProto{message("PBMeta", meta), message("PBControl", control), message("PBNode", node)},
	}, nil))(t)
	return file.Messages().ByName("PBMeta")
}

// pack writes m as Van::PackMeta of that generation does.
func pack(t testing.TB, desc protoreflect.MessageDescriptor, m *Meta) []byte {
	t.Helper()
	pb := dynamicpb.NewMessage(desc)
	set := func(to protoreflect.Message, name string, v any) {
		if f := to.Descriptor().Fields().ByName(protoreflect.Name(name)); f != nil {
			to.Set(f, protoreflect.ValueOf(v))
		}
	}
	set(pb, "head", m.Head)
	if m.AppID != Empty {
		set(pb, "app_id", m.AppID)
	}
	if id := pb.Descriptor().Fields().ByName("customer_id"); id.Number() != 7 || m.CustomerID != Empty {
		set(pb, "customer_id", m.CustomerID)
	}
	if m.Timestamp != Empty {
		set(pb, "timestamp", m.Timestamp)
	}
	if len(m.Body) > 0 {
		set(pb, "body", m.Body)
	}
	set(pb, "push", m.Push)
	set(pb, "pull", m.Pull)
	set(pb, "request", m.Request)
	set(pb, "simple_app", m.SimpleApp)
	set(pb, "priority", m.Priority)
	set(pb, "data_size", m.DataSize)
	for _, dt := range m.DataTypes {
		f := desc.Fields().ByName("data_type")
		pb.Mutable(f).List().Append(protoreflect.ValueOf(int32(dt)))
	}
	if c := &m.Control; c.Cmd != NoCommand {
		ctrl := pb.Mutable(desc.Fields().ByName("control")).Message()
		set(ctrl, "cmd", int32(c.Cmd))
		switch c.Cmd {
		case Barrier:
			set(ctrl, "barrier_group", c.BarrierGroup)
		case Ack:
			set(ctrl, "msg_sig", c.MsgSig)
		}
		nodes := ctrl.Mutable(ctrl.Descriptor().Fields().ByName("node")).List()
		for _, n := range c.Nodes {
			p := nodes.NewElement().Message()
			set(p, "id", n.ID)
			set(p, "role", int32(n.Role))
			set(p, "port", n.Port)
			set(p, "hostname", n.Hostname)
			set(p, "is_recovery", n.IsRecovery)
			set(p, "customer_id", n.CustomerID)
			nodes.Append(protoreflect.ValueOf(p))
		}
	}
	b := require.Value(proto.MarshalOptions{Deterministic: true}.Marshal(pb))(t)
	return b
}

// unpack reads b as Van::UnpackMeta of that generation does, far enough to
// compare, and reports whether PS-lite would accept it.
func unpack(desc protoreflect.MessageDescriptor, b []byte) (*dynamicpb.Message, error) {
	pb := dynamicpb.NewMessage(desc)
	return pb, proto.Unmarshal(b, pb)
}
