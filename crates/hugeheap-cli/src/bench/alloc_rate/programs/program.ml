(* The loop of `hugeheap bench alloc-rate` in OCaml: field COUNT. A block is its header and one field, 16 bytes; it is always written. *)
type a = { mutable number : int }

let kept = ref { number = 0 }
let kept_before = ref { number = 0 }

let () =
  let count = int_of_string Sys.argv.(2) in
  let begin_ = Unix.gettimeofday () in
  let last = ref !kept and before = ref !kept in
  for number = 1 to count do
    before := !last;
    last := { number }
  done;
  let seconds = Unix.gettimeofday () -. begin_ in
  kept := !last;
  kept_before := !before;
  Printf.printf "{\"seconds\": %.9f, \"objects\": %d, \"bytes\": 16}\n" seconds count
