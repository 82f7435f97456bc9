package pslite

import (
	"errors"
	"fmt"
)

// Dialect is a generation of PS-lite's meta frame.
type Dialect uint8

// The dialects. Nothing on the wire names them; see [Detector].
const (
	Unknown Dialect = iota
	// DMLC is dmlc/ps-lite since September 2019: a protobuf with fields pull
	// (12) and, a month later, priority (13).
	DMLC
	// DMLC2018 is dmlc/ps-lite before: customer_id (10) and data_size (11),
	// but no pull; what is no push is a pull.
	DMLC2018
	// DMLC2017 is dmlc/ps-lite of 2017 and before: field 7 is customer_id,
	// there is no app_id, and fields 10 to 13 do not exist.
	DMLC2017
	// BytePSRaw is bytedance/ps-lite: a C struct, little endian, aligned as
	// on 64-bit machines.
	BytePSRaw
)

// String returns the dialect's short name.
func (d Dialect) String() string {
	switch d {
	case DMLC:
		return "dmlc"
	case DMLC2018:
		return "dmlc-2018"
	case DMLC2017:
		return "dmlc-2017"
	case BytePSRaw:
		return "byteps"
	}
	return "unknown"
}

// Certainty says how sure a [Detector] is.
type Certainty uint8

const (
	// None: no message was seen.
	None Certainty = iota
	// Presumed: everything seen fits, but a later message may show a newer
	// generation. That cannot happen with PS-lite's own programs, which write
	// all fields that their generation has into every message.
	Presumed
	// Certain: proven by a field that only this dialect has, or by 16
	// messages that agree.
	Certain
)

// enough is how many messages that agree make a presumption certain.
const enough = 16

// Detector finds out which dialect one sender speaks, from its messages. The
// zero value knows nothing yet. Use one for each direction of a connection,
// or one for a job, whose nodes all speak one dialect.
type Detector struct {
	dialect Dialect
	agreed  int
	certain bool
	decoded uint64
}

// Decoded returns how many meta frames were given to Decode.
func (d *Detector) Decoded() uint64 { return d.decoded }

// Dialect returns what is known so far.
func (d *Detector) Dialect() (Dialect, Certainty) {
	switch {
	case d.dialect == Unknown:
		return Unknown, None
	case d.certain:
		return d.dialect, Certain
	}
	return d.dialect, Presumed
}

var errNotMeta = errors.New("pslite: not a meta frame of any dialect")

// Decode reads a meta frame into m and returns the dialect that it is in. A
// presumption that the frame disproves is replaced; once certain, a frame in
// another dialect is an error.
func (d *Detector) Decode(b []byte, m *Meta) (Dialect, error) {
	d.decoded++
	if len(b) == 0 { // a valid protobuf, but nobody's message
		return Unknown, errNotMeta
	}
	if d.certain {
		return d.dialect, m.Decode(b, d.dialect)
	}
	found, err := Detect(b, m)
	if err != nil {
		return Unknown, err
	}
	switch {
	case d.dialect == Unknown, newer(found, d.dialect):
		d.dialect, d.agreed = found, 0
	case found != d.dialect && newer(d.dialect, found):
		// A sender that leaves out fields with default values.
		found = d.dialect
		if err := m.Decode(b, found); err != nil {
			return Unknown, err
		}
	case found != d.dialect:
		return Unknown, fmt.Errorf("pslite: a meta frame in dialect %s where %s was spoken", found, d.dialect)
	}
	d.agreed++
	d.certain = found == DMLC || d.agreed >= enough
	return found, nil
}

// newer reports whether a is a later protobuf generation than b.
func newer(a, b Dialect) bool {
	return a != BytePSRaw && b != BytePSRaw && a < b
}

// Detect reads a single meta frame into m by what it alone shows: a protobuf
// whose fields tell the generation, or BytePS's struct. A protobuf without any
// field that PS-lite knows is an error.
func Detect(b []byte, m *Meta) (Dialect, error) {
	seen, err := m.decodeProto(b, DMLC)
	if err != nil || seen == 0 {
		if m.decodeBytePS(b) == nil {
			return BytePSRaw, nil
		}
		if err == nil {
			err = errNotMeta
		}
		return Unknown, err
	}
	switch {
	case seen&(1<<fieldPull|1<<fieldPriority) != 0:
		return DMLC, nil
	case seen&(1<<fieldCustomerID|1<<fieldDataSize) != 0:
		_, err = m.decodeProto(b, DMLC2018)
		return DMLC2018, err
	}
	_, err = m.decodeProto(b, DMLC2017)
	return DMLC2017, err
}

// Plausible reports whether b is a meta frame just as PS-lite's own programs
// write it: all fields of its generation, in order, nothing unknown, and types
// for as many data frames as follow (-1: not known). It serves to find the
// messages in a stream whose beginning was missed; random bytes hardly ever
// pass. m is overwritten.
func Plausible(b []byte, dataFrames int, m *Meta) (Dialect, bool) {
	d, err := Detect(b, m)
	if err != nil || m.raw != nil && d != BytePSRaw || dataFrames >= 0 && len(m.DataTypes) != dataFrames {
		return Unknown, false
	}
	if d == BytePSRaw {
		return d, m.AppID >= 0 && m.Timestamp >= 0
	}
	const always = 1<<fieldHead | 1<<fieldRequest | 1<<fieldPush | 1<<fieldSimpleApp
	known := len(m.unknown) == 0 && len(m.Control.unknown) == 0
	return d, known && (m.written(d)^m.flips)&always == always && m.Control.Cmd >= NoCommand && m.Control.Cmd <= Heartbeat
}
