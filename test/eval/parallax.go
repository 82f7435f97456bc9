package main

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/plot/plotter"

	"github.com/psidecar/psidecar/test/eval/report"
)

// Places in [architectures].
const (
	byAllReduce = iota // Horovod
	byServers          // TensorFlow's
	_
	byBoth // Parallax
)

// A scaledModel is a model of Parallax's table 1.
type scaledModel struct {
	job
	parallax float64 // times the throughput of one GPU, by Parallax with 48 (figure 9)
}

// scaledModels returns the models of table 1, dense ones first.
func scaledModels() []scaledModel {
	sparse := published4()
	return []scaledModel{{job{name: "ResNet-50", dense: 23.8e6}, 39.8}, {job{name: "Inception-v3", dense: 25.6e6}, 43.6}, {sparse[0], 9.4}, {sparse[1], 18.4}}
}

// cost returns what a byte costs, as a part of the computation of a step. It is the one free
// number of a model, chosen so that Parallax comes out as in figure 9; the other architectures
// then follow.
func (m scaledModel) cost() float64 {
	return (hosts*hostWorkers/m.parallax - 1) / m.bytesOn(hosts)[byBoth]
}

// speedups returns the throughputs of the architectures with so many machines, as multiples of
// that of one GPU.
func (m scaledModel) speedups(machines int) (all []float64) {
	for _, bytes := range m.bytesOn(machines) {
		all = append(all, float64(machines*hostWorkers)/(1+m.cost()*bytes))
	}
	return all
}

// scaling calculates tables 1 and 6 and figures 7 to 9 of Parallax, and writes them.
func scaling(e *evaluation) error {
	one := table{title: "Parallax Table 1: throughput by servers of that by AllReduce, 48 GPUs", head: []string{"model", "servers by AllReduce", "the paper's"}}
	most := table{title: "Parallax Fig. 8 and 9: throughput with 48 GPUs, of one GPU's; what a byte costs is that with which the paper's HYB comes out", head: append([]string{"model"}, architectures...)}
	most.head = append(most.head, "HYB by NaïvePS", "HYB by AR")
	var panels []report.Panel
	// Images or words a second by servers, divided by those by AllReduce.
	paper := []float64{5.8 / 7.6, 3.8 / 5.9, 98.9 / 45.5, 102 / 68.3}
	for i, m := range scaledModels() {
		with := m.speedups(hosts)
		one.addRow(m.name, fmt.Sprintf("%.2f", with[byServers]/with[byAllReduce]), fmt.Sprintf("%.2f", paper[i]))
		cells := []string{m.name}
		for _, s := range with {
			cells = append(cells, fmt.Sprintf("%.1f", s))
		}
		most.addRow(append(cells, fmt.Sprintf("%.2f", with[byBoth]/with[byServers]), fmt.Sprintf("%.2f", with[byBoth]/with[byAllReduce]))...)
		panels = append(panels, m.panel())
	}
	less := table{title: "Parallax Fig. 7: times faster to the same loss than others, with 6 machines for LM and 4 for NMT; steps are the same by each", head: []string{"model", "by plain servers", "by AllReduce"}}
	for i, machines := range []int{6, 4} {
		m := scaledModels()[2+i]
		with := m.speedups(machines)
		less.addRow(m.name, fmt.Sprintf("%.2f", with[byBoth]/with[byServers]), fmt.Sprintf("%.2f", with[byBoth]/with[byAllReduce]))
	}
	return errors.Join(one.write(e.out), byAlpha().write(e.out), less.write(e.out), most.write(e.out), e.writePanels("parallax.png", panels))
}

// panel draws what figures 8 and 9 have of a model.
func (m scaledModel) panel() report.Panel {
	p := report.Panel{Title: "Parallax Fig. 9: " + m.name, X: "GPUs", Y: "throughput of one GPU's", LogX: true, Legend: true}
	for i, name := range architectures {
		line := report.Line{Name: name}
		for _, machines := range []int{1, 2, 4, 8} {
			line.Points = append(line.Points, plotter.XY{X: float64(machines * hostWorkers), Y: m.speedups(machines)[i]})
		}
		p.Lines = append(p.Lines, line)
	}
	p.Ticks = []float64{6, 12, 24, 48}
	return p
}

// byAlpha calculates table 6: plain servers' bytes by Parallax's, by alpha of the model. The
// sizes of its model are not published. With 3% of it dense, less than its least alpha, the
// sparse values' alpha follows. How much of what a machine's workers use is the same is not
// published either: all of it, as of frequent words, or as much as chance has it.
func byAlpha() *table {
	const dense = 0.03
	t := &table{title: "Parallax Table 6: bytes of plain servers by those of HYB, by alpha of the model, 3% of whose values are dense", head: []string{"alpha", "all in common", "in common by chance", "the paper's"}}
	for _, row := range []struct {
		name         string
		alpha, paper float64
	}{{"1.0", 1, 2.04}, {"0.52", 0.52, 2.33}, {"0.28", 0.28, 2.43}, {"0.16", 0.16, 2.89}, {"0.1", 0.1, 3.02}, {"0.07", 0.07, 3.03}, {"0.04", 0.04, 3.42}} {
		j := job{dense: dense, sparse: 1 - dense, alpha: (row.alpha - dense) / (1 - dense)}
		cells := []string{row.name}
		for _, j.union = range []float64{j.alpha, 1 - math.Pow(1-j.alpha, hostWorkers)} {
			bytes := j.bytes()
			cells = append(cells, fmt.Sprintf("%.2f", bytes[byServers]/bytes[byBoth]))
		}
		t.addRow(append(cells, fmt.Sprintf("%.2f", row.paper))...)
	}
	return t
}
