package report

// Headlines returns the results that the papers state first, for the top of the page.
func Headlines() []Comparison {
	return []Comparison{
		{Claim: "DWW21: less traffic than at random on news20, TSH-1", Paper: "184 %", Ours: Cell{"table5", "DWW21 table 5: news20", "TSH-1", "over random, %"}, Note: "8 machines, a rebuilt set; --quick leaves it out"},
		{Claim: "The same by psidecar's best", Paper: "184 %", Ours: Cell{"table5", "DWW21 table 5: news20", "best", "over random, %"}, Note: "no algorithm of the paper"},
		{Claim: "DWW21: communication up to 14 times better than at random (CTRa, MBP)", Paper: "1371 %", Ours: Cell{"table5", "DWW21 table 5: criteo-80k", "MBP", "over random, %"}, Note: "percent over random: 1371% are 14.7 times; CTRa is not published, criteo-80k has other degrees"},
		{Claim: "The same, live, with compact messages, thresholds and unchanged values", Paper: "14 times", Ours: Cell{"worth", "logistic regression", "best, compact, threshold 0.99, unchanged", "times fewer"}, Note: "bytes of the busiest host, rcv1-excerpt; as root"},
		{Claim: "DWW21: mean degree in rcv1.binary (table 4, figure 7)", Paper: "30", Ours: Cell{"degrees", "Node degrees", "rcv1-excerpt, parameters", "mean"}, Note: "of a parameter; the paper does not say of which nodes"},
		{Claim: "The same in news20", Paper: "18", Ours: Cell{"degrees", "Node degrees", "news20-rebuilt, parameters", "mean"}, Note: "1.35 million parameters for the paper's 62,000"},
		{Claim: "DWW21: MBP's gain drops as machines become more (figure 10), soc-LiveJournal", Paper: "falls", Ours: Cell{"machines", "DWW21 Fig. 10, from 8 machines", "soc-slashdot", "MBP"}, Note: "its gain with the most machines, of that with 8; the figure's numbers are not in the paper's text"},
		{Claim: "The same of TSH-1", Paper: "no drop", Ours: Cell{"machines", "DWW21 Fig. 10, from 8 machines", "soc-slashdot", "TSH-1"}, Note: "as before"},
		{Claim: "DW23: fewer bins, fewer bytes and less accuracy (figure 5)", Paper: "both fall", Ours: Cell{"bins", "DW23 Fig. 5, the fewest bins", "fewest of most", "what is left of both"}, Note: "DPPA's volume and the accuracy with the fewest bins, of those with the most; the figure's numbers are not in the paper's text"},
		{Claim: "DW23: DPPA's cumulative volume, of MGP's", Paper: "below 1", Ours: Cell{"dynamic", "DW23 Fig. 8, volumes", "dppa", "of MGP's"}, Note: "the net of 48 hidden units, moves included; home, which never moves a key, is in the table too"},
		{Claim: "The same of psidecar's locality", Paper: "below 1", Ours: Cell{"dynamic", "DW23 Fig. 8, volumes", "locality", "of MGP's"}, Note: "no strategy of the paper"},
		{Claim: "DCT: times fewer bytes of gradients", Paper: "100 times", Ours: Cell{"threshold", "small recommender, criteo-raw-7k, all layers", "99.5%", "bytes of pushes"}, Note: "at 99.5%, keys and metas counted"},
		{Claim: "DCT: test loss lost by that", Paper: "+0.0009", Ours: Cell{"threshold", "small recommender, criteo-raw-7k, all layers", "99.5%", "against none"}, Note: "table 2, of 0.4538; a short training, see the spread"},
		{Claim: "DCT: times fewer bytes of activations", Paper: "20 times", Ours: Cell{"activations", "DCT Table 1", "95%, 1 split", "activations"}, Note: "at 95%"},
		{Claim: "DCT: test loss lost at 90%, one split", Paper: "-0.0008", Ours: Cell{"activations", "DCT Table 1", "90%, 1 split", "against none"}, Note: "table 1, of 0.4538; a short training, see the spread"},
		{Claim: "DCT: a translation's test loss lost at 90%, five workers", Paper: "-0.001", Ours: Cell{"activations-deep", "DCT Table 4", "90%, 4 splits", "against none"}, Note: "table 4, of 3.883; ours has a loss below 1, and with --quick is far from trained"},
		{Claim: "DCT: less time to the same loss", Paper: "37 %", Ours: Cell{"time", "Less time to the same loss", "threshold=0.99 unchanged", "less time %"}, Note: "a recommender on 4 hosts at 200 Mbit/s for a production model; as root"},
		{Claim: "Slim-DP: saved at equal accuracy, GoogLeNet", Paper: "55 %", Ours: Cell{"slim", "Slim-DP at equal accuracy", "most saved within one standard error", "bytes saved %"}, Note: "bytes of pushes and pulls for time"},
		{Claim: "Slim-DP: accuracy lost where VGG-16's 71% are saved, points", Paper: "no loss", Ours: Cell{"slim", "Slim-DP at equal accuracy", "least lost at 71% or more", "against plain, points"}, Note: "the table names the codec"},
		{Claim: "Parallax: throughput of local aggregation, of plain servers', LM (table 4)", Paper: "2.53 times", Ours: Cell{"architectures", "Parallax Table 4: throughput", "LM, its bytes alone", "OptPS"}, Note: "by calculation"},
		{Claim: "The same with AllReduce for dense values, LM", Paper: "2.77 times", Ours: Cell{"architectures", "Parallax Table 4: throughput", "LM, its bytes alone", "HYB"}, Note: "by calculation"},
		{Claim: "The same, NMT", Paper: "2.00 times", Ours: Cell{"architectures", "Parallax Table 4: throughput", "NMT, its bytes alone", "HYB"}, Note: "by calculation"},
		{Claim: "Parallax: throughput of TensorFlow's servers, LM", Paper: "2.8 times", Ours: Cell{"architectures", "Parallax Fig. 8 and 9", "LM", "HYB by NaïvePS"}, Note: "by calculation for 48 GPUs, with one free number; measured it is out of reach: it takes TensorFlow on 48 GPUs"},
		{Claim: "Parallax: throughput of Horovod, LM", Paper: "6.02 times", Ours: Cell{"architectures", "Parallax Fig. 8 and 9", "LM", "HYB by AR"}, Note: "as before"},
	}
}
