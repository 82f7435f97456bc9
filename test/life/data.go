package life

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

// Names that stand for files of data in a job's arguments, see [data]. Jobs are drawn before
// the files exist, and the same arguments name the same direct run.
const (
	texts    = "@texts"
	clicks   = "@clicks"
	pictures = "@pictures"
)

// data is the files that jobs learn from, by the names that stand for them.
type data map[string]string

// makeData makes small data sets in dir, always the same, with psjob's own generator. Everybody
// may read them.
func makeData(t testing.TB, psjob, dir string) data {
	t.Helper()
	d := data{texts: filepath.Join(dir, "texts.libsvm"), clicks: filepath.Join(dir, "clicks.txt"), pictures: filepath.Join(dir, "pictures-images-idx3-ubyte")}
	for _, args := range [][]string{
		{"--kind", "text", "--samples", "800", "--features", "3000", "--words", "40", "--out", d[texts]},
		{"--kind", "clicks", "--samples", "1500", "--features", "1000", "--out", d[clicks]},
	} {
		if out, err := exec.Command(psjob, append([]string{"generate"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("psjob generate: %v: %s", err, out)
		}
	}
	images, labels := drawPictures(400, 12)
	for file, text := range map[string][]byte{d[pictures]: images, filepath.Join(dir, "pictures-labels-idx1-ubyte"): labels} {
		require.NoError(t, os.WriteFile(file, text, 0o644))
	}
	return d
}

// drawPictures returns n pictures of side by side pixels, and their labels, in the form of idx
// files: of each class the same pixels are bright, with noise.
func drawPictures(n, side int) (images, labels []byte) {
	const classes = 10
	r := rand.New(rand.NewPCG(11, 12))
	var bright [classes][]byte
	for c := range bright {
		bright[c] = make([]byte, side*side)
		for range side * 2 {
			bright[c][r.IntN(side*side)] = 200
		}
	}
	header := func(kind byte, sizes ...int) *bytes.Buffer {
		b := bytes.NewBuffer([]byte{0, 0, 8, kind})
		for _, size := range sizes {
			binary.Write(b, binary.BigEndian, uint32(size)) // to memory: cannot fail
		}
		return b
	}
	pixels, names := header(3, n, side, side), header(1, n)
	for range n {
		c := r.IntN(classes)
		names.WriteByte(byte(c))
		for _, p := range bright[c] {
			pixels.WriteByte(p + byte(r.IntN(50)))
		}
	}
	return pixels.Bytes(), names.Bytes()
}

// files returns a job's arguments with the names of files put in.
func (d data) files(args []string) (all []string) {
	for _, a := range args {
		if file, ok := d[a]; ok {
			a = file
		}
		all = append(all, a)
	}
	return all
}
