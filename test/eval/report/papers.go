package report

import "fmt"

// column returns comparisons with cells of a column of a part's table. rows are pairs: a row
// and the paper's figure for it.
func column(part, table, head string, rows ...string) (all []Comparison) {
	for i := 0; i+1 < len(rows); i += 2 {
		all = append(all, Comparison{Claim: rows[i], Paper: rows[i+1], Ours: Cell{part, table, rows[i], head}})
	}
	return all
}

// row returns comparisons with cells of a row of a part's table. heads are pairs: a column and
// the paper's figure for it.
func row(part, table, name string, heads ...string) (all []Comparison) {
	for i := 0; i+1 < len(heads); i += 2 {
		all = append(all, Comparison{Claim: heads[i], Paper: heads[i+1], Ours: Cell{part, table, name, heads[i]}})
	}
	return all
}

// of puts what comparisons are about before their claims. It changes all and returns it.
func of(what string, all []Comparison) []Comparison {
	for i := range all {
		all[i].Claim = what + ": " + all[i].Claim
	}
	return all
}

// join returns comparisons one after the other.
func join(lists ...[]Comparison) (all []Comparison) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// one returns a single comparison, for join.
func one(claim, paper string, ours Cell) []Comparison {
	return []Comparison{{Claim: claim, Paper: paper, Ours: ours}}
}

// dww21 returns Duan, Wang and Wu 2021, on dividing data and parameters before a run.
func dww21() Paper {
	gains := func(file string, rows ...string) []Comparison {
		return of(file+", % over random", column("table5", "DWW21 table 5: "+file, "over random, %", rows...))
	}
	size := func(head string, rows ...string) []Comparison {
		return of(head, column("table5", "DWW21 table 4: sizes", head, rows...))
	}
	return Paper{"DWW21", "Duan, Wang and Wu 2021, Minimizing Training Time of Distributed Machine Learning by Reducing Data Communication", []Item{
		{Name: "Table 4", Claim: "The sizes of four real data sets and three made ones.", Part: "table5", StandIn: "excerpts and rebuilt sets of the public ones; CTRa is not published", Why: "What of the sets may be kept beside a program is smaller, and CTRa's stand-in has fewer fields; each table's title has our sizes.",
			Compared: join(size("mean degree", "rcv1-excerpt", "30", "news20-rebuilt", "18"))},
		{Name: "Table 5", Claim: "With 8 machines less traffic at the busiest one than at random, by TSH-1, TSH-2, MBP and PaToH, in percent.", Part: "table5", StandIn: "rcv1-excerpt, criteo-80k for CTRa, news20-rebuilt, soc-slashdot for soc-LiveJournal", Why: "Smaller data, of other degrees; best is psidecar's own. PaToH is a program of others, which psidecar does not have.",
			Compared: join(gains("rcv1-excerpt", "TSH-1", "109 %", "TSH-2", "111 %", "MBP", "103 %"), gains("soc-slashdot", "TSH-1", "175 %", "TSH-2", "183 %", "MBP", "82 %"),
				gains("criteo-80k", "TSH-1", "906 %", "TSH-2", "951 %", "MBP", "1371 %"), gains("news20-rebuilt", "TSH-1", "184 %", "TSH-2", "193 %", "MBP", "175 %"))},
		{Name: "Figure 7", Claim: "Node degrees of rcv1.binary and news20: many small, few large; 30 and 18 in the mean (table 4).", Part: "degrees", StandIn: "rcv1-excerpt, news20-rebuilt", Why: "The same corpora, other documents: news20-rebuilt has 1.35 million words for the paper's 62,000 (table 4), most of them in two messages.",
			Compared: of("mean degree", column("degrees", "Node degrees", "mean", "rcv1-excerpt, parameters", "30", "news20-rebuilt, parameters", "18"))},
		{Name: "Figure 8", Claim: "The sparser the graph, the more a partition gains over random; TSH-1 gains 13.0% to 90.6% on the dense set as machines become more, and TSH-2 is 85.4% ahead of it on the sparse one at 4.", Part: "sweeps", StandIn: "random graphs of 1,000 parameters, with --full of 10,000", Why: "Smaller graphs by a factor of ten, unless --full.",
			Compared: of("TSH-1 on the dense set, machines", column("sweeps", "DWW21 Fig. 8: number of machines, n = m; dense", "TSH-1", "2", "13.0 %", "64", "90.6 %"))},
		{Name: "Figure 9", Claim: "More data for as many parameters, and the gain falls, ever less; with twice as many samples as parameters some 100% are left on the medium set and 700% on the sparse one.", Part: "sweeps", StandIn: "as figure 8", Why: "As figure 8; what a graph of 1,000 parameters at a sparsity of 0.999 has is one edge a sample, which leaves more to gain.",
			Compared: join(of("medium, TSH-1, samples for each parameter", column("sweeps", "DWW21 Fig. 9: samples for each parameter, k = 8; medium", "TSH-1", "2", "100 %")),
				of("sparse, TSH-1, samples for each parameter", column("sweeps", "DWW21 Fig. 9: samples for each parameter, k = 8; sparse", "TSH-1", "2", "700 %")))},
		{Name: "Figure 10", Claim: "CTRa gains more than soc-LiveJournal at any number of machines; TSH-1 and TSH-2 stay where they are as machines become more, MBP drops.", Part: "machines", StandIn: "criteo-80k for CTRa, soc-slashdot for soc-LiveJournal; with --quick their first 4,000 rows", Why: "Gains are smaller: fields of criteo-80k have values that most rows share, and soc-slashdot is a small graph around few hubs. The figure's numbers are not in the paper's text. PaToH is not among psidecar's algorithms.",
			Compared: of("gain with the most machines of that with 8, soc-slashdot", row("machines", "DWW21 Fig. 10, from 8 machines", "soc-slashdot", "TSH-1", "no drop", "TSH-2", "no drop", "MBP", "falls"))},
		{Name: "Figure 11", Claim: "Training is 135 to 170% faster on CTRa with 16 machines of EC2, and on rcv1.binary takes 18.0 s with TSH-1 for 181.1 s (section 6.2); TSH takes less than 100 s to divide, MBP 653 s.", Part: "worth", StandIn: "logistic regression on rcv1-excerpt, 8 hosts at 100 Mbit/s", Why: "8 hosts of two cores for 16 machines, and psidecar's best for TSH-1; the time to divide is in table 5.",
			Compared: join(one("times faster by the partition", "10.1 times", Cell{"worth", "logistic regression", "best", "times faster"}),
				one("times faster with psidecar's codecs too", "10.1 times", Cell{"worth", "logistic regression", "best, compact, threshold 0.99, unchanged", "times faster"}),
				of("seconds to divide criteo-80k", column("table5", "DWW21 table 5: criteo-80k", "seconds", "TSH-1", "below 100", "MBP", "653 s")))},
	}}
}

// dw23 returns Duan and Wu 2023, on hashing and on moving parameters during a run.
func dw23() Paper {
	const text = "The figure's numbers are not in the paper's text, so that the shapes are compared."
	return Paper{"DW23", "Duan and Wu 2023, Reducing Communication in Parameter Servers with Model Compression and Graph Partition", []Item{
		{Name: "Figure 2", Claim: "Node degrees of rcv1.binary and news20: most are small.", Part: "degrees", StandIn: "rcv1-excerpt, news20-rebuilt", Why: "As figure 7 of DWW21.",
			Compared: of("parameters below the mean, %", column("degrees", "Node degrees", "below the mean, %", "rcv1-excerpt, parameters", "most", "news20-rebuilt, parameters", "most"))},
		{Name: "Figure 5", Claim: "With more bins of hashed features more traffic and more accuracy, which is lost nearly linearly as bins halve.", Part: "bins", StandIn: "rcv1-excerpt, with --quick its first quarter, for the paper's set, which it does not name", Why: text + " A row has a feature for each bin: beyond 64 bins hashed rows are longer than they were, and cost more than those that are not hashed.",
			Compared: one("volume and accuracy with the fewest bins, of those with the most", "both fall", Cell{"bins", "DW23 Fig. 5, the fewest bins", "fewest of most", "what is left of both"})},
		{Name: "Figure 6", Claim: "Traffic grows with machines, and falls with fewer bins; DPPA stays below random and MGP.", Part: "hashed", StandIn: "rcv1-excerpt hashed to 16 and 64 bins for news20; with --quick its first eighth", Why: text + " On few machines the multilevel algorithm that stands for MGP is better than DPPA by up to 13%, and worse from 32 on.",
			Compared: column("hashed", "DW23 Fig. 6 and 7, shapes", "ours", "volume with the most machines, of that with the fewest", "grows", "volume with few bins, of that with more", "falls", "DPPA, of random, at most", "below 1", "DPPA, of MGP, at most", "below 1")},
		{Name: "Figure 7", Claim: "Traffic grows with the ratio of samples to parameters; the gap between DPPA and MGP is wider with more bins.", Part: "hashed", StandIn: "random rows", Why: text,
			Compared: column("hashed", "DW23 Fig. 6 and 7, shapes", "ours", "volume with the most samples for each parameter, of that with the fewest", "grows", "MGP by DPPA, more bins", "more", "MGP by DPPA, few bins", "less")},
		{Name: "Figure 8", Claim: "While a net is pruned, DPPA's cumulative volume with migration is below MGP's, and the gap grows with the epochs.", Part: "dynamic", StandIn: "nets on MNIST", Why: "Ours are smaller nets; locality is psidecar's own.",
			Compared: column("dynamic", "DW23 Fig. 8, volumes", "of MGP's", "dppa", "below 1", "locality", "below 1")},
	}}
}

// slim returns Slim-DP, on pushing and pulling a core of the parameters.
func slim() Paper {
	const table = "MLP 784-64-10"
	losses := func(rows ...string) []Comparison { return column("slim", table, "against plain", rows...) }
	return Paper{"Slim-DP", "Sun et al. 2018, Slim-DP: A Multi-Agent System for Communication-Efficient Distributed Deep Learning", []Item{
		{Name: "Table 1", Claim: "With 4 workers 55.12% of the communication time saved on GoogLeNet and 71.15% on VGG-16, with 0.23 and 0.50 points more accuracy; 47.85% and 63.05% by quantized pushes.", Part: "slim", StandIn: pictureData, Why: "Bytes are counted rather than time, pulls and pushes; a net that learns for minutes has nothing to gain from being regularized.",
			Compared: join(of("bytes saved, %", column("slim", table, "bytes saved %", "slim (0.3, 0.15)", "71.15 %", "slim (0.5, 0.25)", "55.12 %", "quantized, 8 bit", "47.85 %")),
				of("accuracy, points", losses("slim (0.3, 0.15)", "+0.50", "slim (0.5, 0.25)", "+0.23", "quantized, 8 bit", "-0.04")),
				of("saved at equal accuracy, %", column("slim", "Slim-DP at equal accuracy", "bytes saved %", "most saved within one standard error", "55.12 %")))},
		{Name: "Figure 2", Claim: "30 to 40% more images a second on VGG-16, over 10% on GoogLeNet.", Part: "speed", StandIn: "a recommender on 4 hosts at 200 Mbit/s for VGG-16 on 4 GPUs, live", Why: "Here links are the limit rather than the computation, so that more is gained.",
			Compared: column("speed", "Steps a second", "of direct", "slim=0.3,0.15", "1.3 times")},
		{Name: "Figure 3", Claim: "Slim-DP is ahead of plain and quantized pushes throughout the training.", Part: "slim", StandIn: pictureData, Why: "By steps, not by time; the plot has all steps.",
			Compared: of("accuracy at the end, points", losses("slim (0.4, 0.2)", "above 0", "quantized, 8 bit", "about 0"))},
		{Name: "Figure 4", Claim: "Without exploration it does not converge, without a core it is as DropConnect.", Part: "slim", StandIn: pictureData, Why: "A net of one hidden layer converges without exploration too, for the core changes as it learns.",
			Compared: of("accuracy, points", losses("slim (0.4, 0)", "far below 0", "slim (0.4, 0.4)", "above 0"))},
		{Name: "Figure 5", Claim: "(0.3, 0.15) is best, (0.2, 0.1) loses accuracy, (0.5, 0.25) saves less.", Part: "slim", StandIn: pictureData, Why: "As table 1.",
			Compared: of("accuracy, points", losses("slim (0.2, 0.1)", "below 0", "slim (0.3, 0.15)", "above 0", "slim (0.5, 0.25)", "above 0"))},
	}}
}

// beyond returns what no paper has: the same jobs on plain PS-lite, and each measure of
// psidecar added to them.
func beyond() Paper {
	var items []Item
	for _, mbit := range []int{20, 50, 200, 1000} {
		title := fmt.Sprintf("Measure by measure, recommender, 4 hosts, %d Mbit/s", mbit)
		var all []Comparison
		for _, measure := range []string{"none", "compact", "unchanged", "unchanged wire=bf16", "unchanged threshold=0.99", "unchanged threshold=0.99 quantize=8"} {
			all = append(all, of(measure, row("measures", title, measure, "times faster", "", "times fewer", "", "ms of a processor a step", ""))...)
		}
		items = append(items, Item{Name: fmt.Sprintf("%d Mbit/s", mbit), Claim: "No paper has it: plain PS-lite, and each measure added to it; time to the same loss, bytes and processor time.", Part: "measures",
			StandIn: "a recommender on " + criteo, Why: "Live, four hosts on one machine: from 200 Mbit/s on its processors are the limit rather than the links.", Compared: all})
	}
	return Paper{"Beyond the papers", "The same jobs under plain PS-lite, and each measure of psidecar added to them one by one", items}
}
