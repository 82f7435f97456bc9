package advice

import (
	"bytes"
	"math/rand/v2"
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

// Pushes of values that are no float32 are messages too; of these it is not said how much
// of a step waits.
func TestPushesOfOtherTypes(t *testing.T) {
	s := require.Value(NewStudy(64 << 20))(t)
	m := pslite.Meta{Timestamp: 1, Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Char}}
	frames := [][]byte{m.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{7}), make([]byte, 64)}
	require.NoError(t, s.Message("up", pslite.WorkerID(0), frames))
	if r := s.Report(); r.Pushes != 1 || r.StepSquares != 0 {
		t.Errorf("%d pushes with %v squares a step, want 1 and none", r.Pushes, r.StepSquares)
	}
}
