package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/psidecar/psidecar/planner/dataset"
)

// Classes is the number of different labels of the pictures.
const Classes = 10

// Images holds grey pictures with a class each.
type Images struct {
	pixels int // of a picture
	data   []byte
	labels []byte
}

// Len returns the number of pictures.
func (m *Images) Len() int { return len(m.labels) }

// Pixels returns how many pixels a picture has.
func (m *Images) Pixels() int { return m.pixels }

// Label returns the class of a picture.
func (m *Images) Label(i int) int { return int(m.labels[i]) }

// Append appends a picture's pixels, scaled as MNIST's have to be to have mean 0 and
// variance 1.
func (m *Images) Append(dst []float32, i int) []float32 {
	dst = slices.Grow(dst, m.pixels)
	for _, p := range m.data[i*m.pixels : (i+1)*m.pixels] {
		dst = append(dst, (float32(p)/255-0.1307)/0.3081)
	}
	return dst
}

// NewImages returns pictures of so many pixels, one behind the other in data, with
// labels below [Classes].
func NewImages(pixels int, data, labels []byte) *Images { return &Images{pixels, data, labels} }

// largestPicture bounds what a damaged header can ask for, in pixels.
const largestPicture = 1 << 20

// LoadImages reads a worker's share of pictures and labels in MNIST's idx format. The
// files may be compressed.
func LoadImages(imagePath, labelPath string, share Share) (*Images, error) {
	images, counts, err := openIdx(imagePath, 3)
	if err != nil {
		return nil, err
	}
	defer images.Close()
	labels, labelCount, err := openIdx(labelPath, 1)
	if err != nil {
		return nil, err
	}
	defer labels.Close()
	if counts[0] != labelCount[0] {
		return nil, fmt.Errorf("%s has %d pictures, %s has %d labels", imagePath, counts[0], labelPath, labelCount[0])
	}
	pixels := uint64(counts[1]) * uint64(counts[2])
	if pixels == 0 || pixels > largestPicture {
		return nil, fmt.Errorf("%s: images of %d x %d pixels: want 1 to %d pixels", imagePath, counts[1], counts[2], largestPicture)
	}
	m := &Images{pixels: int(pixels)}
	// Pictures of other workers' shares are read, too, since a compressed file cannot
	// be skipped in.
	picture, label := make([]byte, pixels), make([]byte, 1)
	for i := range int(counts[0]) {
		if _, err := io.ReadFull(images, picture); err != nil {
			return nil, fmt.Errorf("%s ends at image %d of %d: %w", imagePath, i+1, counts[0], err)
		}
		if _, err := io.ReadFull(labels, label); err != nil {
			return nil, fmt.Errorf("%s ends at label %d of %d: %w", labelPath, i+1, counts[0], err)
		}
		if label[0] >= Classes {
			return nil, fmt.Errorf("%s: label %d is %d: want 0 to %d", labelPath, i+1, label[0], Classes-1)
		}
		if share.Has(i) {
			m.data = append(m.data, picture...)
			m.labels = append(m.labels, label[0])
		}
	}
	if len(m.labels) == 0 {
		return nil, fmt.Errorf("%s: %d images are too few: none left for worker %d of %d", imagePath, counts[0], share.Index, share.Of)
	}
	return m, nil
}

// openIdx opens a file of bytes with the given number of dimensions, and returns it
// positioned behind its header, with the size of each dimension.
func openIdx(path string, dimensions int) (io.ReadCloser, []uint32, error) {
	file, err := dataset.Open(path)
	if err != nil {
		return nil, nil, err
	}
	buffered := struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(file, 1<<16), file}
	header := make([]byte, 4+4*dimensions)
	if _, err := io.ReadFull(buffered, header); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("%s ends within its idx header: %w", path, err)
	}
	// Two zeros, the type (8: unsigned bytes) and the number of dimensions; then
	// their sizes, big endian.
	if header[0] != 0 || header[1] != 0 || header[2] != 8 || int(header[3]) != dimensions {
		file.Close()
		return nil, nil, fmt.Errorf("%s starts with % x: want an idx file of bytes with %d dimensions (00 00 08 %02x)", path, header[:4], dimensions, dimensions)
	}
	counts := make([]uint32, dimensions)
	for i := range counts {
		counts[i] = binary.BigEndian.Uint32(header[4+4*i:])
	}
	return buffered, counts, nil
}
