package advice

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// A study of a dense layer's gradients says of each codec what it takes: a
// hundredth and its positions, a quarter, and so on; and what waits grows with
// the sparsity.
func TestReportOfWhatEachCodecTakes(t *testing.T) {
	s := require.Value(NewStudy(64 << 20))(t)
	r := rand.New(rand.NewPCG(1, 1))
	for step := range int32(30) {
		for _, push := range []bool{true, false} {
			vals := make([]float32, 20_000)
			for i := range vals {
				vals[i] = float32(r.NormFloat64())
			}
			m := pslite.Meta{Timestamp: 2*step + 1, Request: push, Push: push, Pull: !push, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
			frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{7}), pslite.AppendFloat32(nil, vals)}
			connection, node := "up", pslite.WorkerID(0)
			if !push {
				connection, node = "down", pslite.ServerID(0)
			}
			require.NoError(t, s.Message(connection, node, frames))
		}
	}
	report := s.Report()
	if report.Pushes != 30 || report.PushBytes < 30*80_000 || report.PullBytes < 30*80_000 {
		t.Errorf("%+v", report)
	}
	rows := map[string]Row{}
	for _, row := range report.Codecs {
		rows[row.Codec] = row
	}
	for _, c := range []struct {
		codec                   string
		leastPushes, mostPushes float64
		leastPulls, mostPulls   float64
		leastWaits, mostWaits   float64
	}{
		{"compact", 0.99, 1.01, 0.99, 1.01, 0, 0},
		{"quantize 8", 0.24, 0.27, 0.99, 1.01, 0, 0},
		{"threshold 0.99", 0.005, 0.03, 0.99, 1.01, 2, 6},
		{"threshold 0.75", 0.2, 0.45, 0.99, 1.01, 0.2, 2},
		{"slim 0.3,0.15", 0.24, 0.3, 0.24, 0.32, 0, 0},
	} {
		row := rows[c.codec]
		if row.Pushes < c.leastPushes || row.Pushes > c.mostPushes || row.Pulls < c.leastPulls || row.Pulls > c.mostPulls || row.Waits < c.leastWaits || row.Waits > c.mostWaits {
			t.Errorf("%+v", row)
		}
	}
	var table bytes.Buffer
	if err := report.Print(&table); err != nil || !strings.Contains(table.String(), "threshold 0.995") {
		t.Errorf("%v, %s", err, table.String())
	}
}

// Rows that are pulled and gradients that are pushed for them go by the largest of
// each row, once two pulls were followed by their pushes.
func TestReportOfActivations(t *testing.T) {
	s := require.Value(NewStudy(64 << 20))(t)
	r := rand.New(rand.NewPCG(1, 1))
	const steps = 20
	for step := range steps {
		var keys []uint64
		for i := range 50 {
			keys = append(keys, uint64(1000*step+i))
		}
		vals := make([]float32, 50*64)
		for i := range vals {
			vals[i] = float32(r.NormFloat64())
		}
		types := []pslite.DataType{pslite.Uint64, pslite.Float}
		for _, m := range []pslite.Meta{
			{Timestamp: int32(2 * step), Request: true, Pull: true, DataTypes: types[:1]},
			{Timestamp: int32(2 * step), Pull: true, DataTypes: types},
			{Timestamp: int32(2*step + 1), Request: true, Push: true, DataTypes: types},
		} {
			frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, keys), pslite.AppendFloat32(nil, vals)}
			connection, node := "up", pslite.WorkerID(0)
			if !m.Request {
				connection, node = "down", pslite.ServerID(0)
			} else if m.Pull {
				frames[2] = nil
			}
			require.NoError(t, s.Message(connection, node, frames))
		}
	}
	for _, row := range s.Report().Codecs {
		if row.Codec != "threshold-activations 0.95" {
			continue
		}
		least, most := (1.8+0.03*(steps-2))/steps, (2+0.07*(steps-2))/steps
		if row.Pushes < least || row.Pushes > most || row.Pulls < least || row.Pulls > most+0.01 || row.Waits != 0 {
			t.Errorf("%+v, want shares from %.3f to %.3f", row, least, most)
		}
		return
	}
	t.Error("activations were not tried")
}

// Values of bytes are tried as what their first command that says it says they are; those of
// other types, row-sparse or compressed ones pass, and are counted.
func TestValuesOfBytes(t *testing.T) {
	s := require.Value(NewStudy(64 << 20))(t)
	r := rand.New(rand.NewPCG(1, 1))
	floats := make([]float32, 20_000)
	send := func(command int32, values []byte) {
		t.Helper()
		m := pslite.Meta{Head: command, Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
		require.NoError(t, s.Message("up", pslite.WorkerID(0), [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{7}), values}))
	}
	const float32s, float16s, rowSparse = 0, 5, 1 // by Cantor's pairing of 0 and 0, 0 and 2, 1 and 0
	for range 30 {
		for i := range floats {
			floats[i] = float32(r.NormFloat64())
		}
		send(float32s, pslite.AppendFloat32(nil, floats))
	}
	report := s.Report()
	at := slices.IndexFunc(report.Codecs, func(r Row) bool { return r.Codec == "threshold 0.99" })
	if row := report.Codecs[at]; row.Pushes > 0.05 || row.Waits == 0 || report.CharValues != "float32" || report.UntypedBytes != 0 {
		t.Errorf("%+v of %+v", row, report)
	}
	send(float16s, make([]byte, 64))
	send(rowSparse, make([]byte, 32))
	if report = s.Report(); report.Pushes != 32 || report.UntypedBytes != 96 {
		t.Errorf("%+v", report)
	}
}

// Pushes of values that are no floats are messages too; of these it is not said how much of a
// step waits.
func TestPushesOfOtherTypes(t *testing.T) {
	s := require.Value(NewStudy(64 << 20))(t)
	m := pslite.Meta{Timestamp: 1, Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Int32}}
	frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{7}), make([]byte, 64)}
	require.NoError(t, s.Message("up", pslite.WorkerID(0), frames))
	if r := s.Report(); r.Pushes != 1 || r.UntypedBytes != 64 || r.StepSquares != 0 {
		t.Errorf("%d pushes with %v squares a step, want 1 and none", r.Pushes, r.StepSquares)
	}
}
