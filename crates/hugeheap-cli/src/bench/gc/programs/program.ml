(* The workloads of `hugeheap bench gc` in OCaml: program WORKLOAD SIZE CHARGE_FILE. The same as the workloads on hugeheap, line for line
   where the languages allow. Nothing can be pinned here, and pauses cannot be seen from inside. *)

let state = ref 42

let below limit =
  state := (!state * 1103515245 + 12345) land 0x7fffffff;
  (!state * limit) lsr 31

let objects = ref 0
let check = ref 0
let live = ref 0

type tree = Empty | Node of tree * tree

(* Of constants the compiler would make one node for the whole program. *)
let rec tree depth = if depth = 0 then Node (Sys.opaque_identity Empty, Empty) else
    let left = tree (depth - 1) in
    let right = tree (depth - 1) in
    Node (left, right)

let rec count = function
  | Empty -> 0
  | Node (Empty, _) -> 1
  | Node (left, right) -> 1 + count left + count right

let binary_trees depth =
  check := count (tree (depth + 1));
  let stays = tree depth in
  let now = ref 4 in
  while !now <= depth do
    for _ = 1 to 1 lsl (depth - !now + 4) do
      check := !check + count (tree !now)
    done;
    now := !now + 2
  done;
  check := !check + count stays;
  objects := !check

type wide = Nothing | Wide of { mutable left : wide; mutable right : wide; numbers : int }

let fresh () = Wide { left = Nothing; right = Nothing; numbers = 0 }

let rec wide_tree depth = if depth = 0 then fresh () else
    let left = wide_tree (depth - 1) in
    let right = wide_tree (depth - 1) in
    Wide { left; right; numbers = 0 }

let rec populate depth = function
  | Nothing -> ()
  | Wide at ->
    if depth > 0 then begin
      at.left <- fresh ();
      at.right <- fresh ();
      populate (depth - 1) at.left;
      populate (depth - 1) at.right
    end

let rec wide_count = function
  | Nothing -> 0
  | Wide { left = Nothing; _ } -> 1
  | Wide { left; right; _ } -> 1 + wide_count left + wide_count right

let has_left = function Wide { left = Wide _; _ } -> 1 | _ -> 0
let nodes depth = (2 lsl depth) - 1

let gcbench depth =
  let stretch = depth + 2 in
  check := wide_count (wide_tree stretch);
  let stays = fresh () in
  populate depth stays;
  let array = Array.make 500000 0.0 in
  for index = 0 to 249999 do
    array.(index) <- 1.0 /. float_of_int (index + 1)
  done;
  objects := !check + nodes depth + 1;
  let now = ref 4 in
  while !now <= depth do
    let rounds = 2 * nodes stretch / nodes !now in
    for _ = 1 to rounds do
      let root = fresh () in
      populate !now root;
      check := !check + has_left root
    done;
    for _ = 1 to rounds do
      check := !check + has_left (wide_tree !now)
    done;
    objects := !objects + 2 * rounds * nodes !now;
    now := !now + 2
  done;
  check := !check + int_of_float (Float.round (array.(999) *. 1000.0));
  check := !check + wide_count stays

(* A header and seven words are 64 bytes. *)
type leaf = { number : int; a : int; b : int; c : int; d : int; e : int; f : int }

let leaf number = { number; a = 0; b = 0; c = 0; d = 0; e = 0; f = 0 }

let churn size =
  let places = max 1 (size / 72) in
  let nobody = leaf 0 in
  let table = Array.make places nobody in
  for place = 0 to places - 1 do
    table.(place) <- leaf place
  done;
  for number = 0 to 2 * places - 1 do
    let place = below places in
    table.(place) <- leaf number
  done;
  Array.iter (fun leaf -> check := !check + leaf.number) table;
  objects := 3 * places;
  live := places * 72

(* A header and three words are 32 bytes. *)
type small = { value : int; x : int; y : int }

let wide_arrays size =
  let places = max 1 (size / 64 / 16) in
  let nobody = { value = 0; x = 0; y = 0 } in
  let arrays = Array.init 16 (fun _ -> Array.make places nobody) in
  let writes = 16 * places / 2 in
  for value = 0 to writes - 1 do
    ignore (Sys.opaque_identity { value; x = 0; y = 0 });
    let array = arrays.(below 16) in
    array.(below places) <- { value; x = 0; y = 0 }
  done;
  Array.iter (Array.iter (fun small -> check := !check + small.value)) arrays;
  objects := 2 * writes

type entry = None_ | Entry of { mutable chain : entry; mutable older : entry; mutable newer : entry; value_ : leaf; key : int }

let oldest = ref None_
let newest = ref None_

let unlink = function
  | None_ -> ()
  | Entry at ->
    (match at.older with Entry older -> older.newer <- at.newer | None_ -> oldest := at.newer);
    (match at.newer with Entry newer -> newer.older <- at.older | None_ -> newest := at.older)

let link entry = match entry with
  | None_ -> ()
  | Entry at ->
    at.older <- !newest;
    at.newer <- None_;
    (match !newest with Entry last -> last.newer <- entry | None_ -> oldest := entry);
    newest := entry

let lru size =
  let capacity = max 1 (size / 128) in
  let buckets = ref 1 in
  while !buckets < capacity do buckets := !buckets * 2 done;
  let buckets = !buckets in
  let table = Array.make buckets None_ in
  let bucket key = (key * 0x9E3779B1) land (buckets - 1) in
  let held = ref 0 in
  let rec find key = function
    | None_ -> None_
    | Entry at as entry -> if at.key = key then entry else find key at.chain in
  let rec drop old = function
    | None_ -> ()
    | Entry at -> if at.chain == old then (match old with Entry gone -> at.chain <- gone.chain | None_ -> ()) else drop old at.chain in
  for number = 0 to 4 * capacity - 1 do
    let key = below (2 * capacity) in
    match find key table.(bucket key) with
    | Entry _ as found ->
      incr check;
      unlink found;
      link found
    | None_ ->
      if !held = capacity then begin
        let old = !oldest in
        unlink old;
        match old with
        | None_ -> ()
        | Entry gone ->
          let slot = bucket gone.key in
          if table.(slot) == old then table.(slot) <- gone.chain else drop old table.(slot)
      end else incr held;
      let made = Entry { chain = table.(bucket key); older = None_; newer = None_; value_ = leaf number; key } in
      table.(bucket key) <- made;
      link made;
      objects := !objects + 2
  done;
  live := !held * 128

type item = End | Item of { number_ : int; mutable next : item; p : int; q : int; r : int; s : int; t : int }

let list = ref End

let evacuation size =
  objects := max 1 (size / 64);
  for number_ = 0 to !objects - 1 do
    list := Item { number_; next = !list; p = 0; q = 0; r = 0; s = 0; t = 0 }
  done;
  Gc.full_major ();
  let last = ref End and now = ref !list in
  let join entry = match !last with End -> list := entry | Item at -> at.next <- entry in
  let rec walk () = match !now with
    | End -> ()
    | Item at ->
      let next = at.next in
      if below 10 = 0 then begin
        join !now;
        last := !now;
        live := !live + 64;
        check := !check + at.number_
      end;
      now := next;
      walk () in
  walk ();
  join End

let lines file =
  match open_in file with
  | exception Sys_error _ -> []
  | channel ->
    let rec all found = match input_line channel with
      | line -> all (line :: found)
      | exception End_of_file -> close_in channel; found in
    all []

let field file name =
  let width = String.length name in
  let value line =
    if String.length line > width && String.sub line 0 width = name
    then Scanf.sscanf (String.sub line width (String.length line - width)) " %d" (fun kib -> kib * 1024)
    else 0 in
  List.fold_left (fun sum line -> sum + value line) 0 (lines file)

let charge file = match lines file with line :: _ -> int_of_string (String.trim line) | [] -> -1

let () =
  let size = int_of_string Sys.argv.(2) in
  let start = charge Sys.argv.(3) in
  let work = match Sys.argv.(1) with
    | "binary-trees" -> binary_trees
    | "gcbench" -> gcbench
    | "churn" -> churn
    | "lru" -> lru
    | "wide-arrays" -> wide_arrays
    | "evacuation" -> evacuation
    | other -> prerr_endline (other ^ ": no such workload"); exit 2 in
  let before = Gc.allocated_bytes () in
  let begin_ = Unix.gettimeofday () in
  work size;
  let seconds = Unix.gettimeofday () -. begin_ in
  let allocated = int_of_float (Gc.allocated_bytes () -. before) in
  if Sys.argv.(1) = "evacuation" then Gc.compact ();
  Printf.printf "{\"seconds\": %.9f, \"objects\": %d, \"allocated\": %d, \"check\": %d, \"live\": %d, " seconds !objects allocated !check
    !live;
  Printf.printf "\"memory\": {\"peak_rss\": %d, \"anonymous\": %d, \"huge\": %d" (field "/proc/self/status" "VmHWM:")
    (field "/proc/self/smaps_rollup" "Anonymous:") (field "/proc/self/smaps_rollup" "AnonHugePages:");
  if start >= 0 then Printf.printf ", \"charge\": [%d, %d]" start (charge Sys.argv.(3));
  print_endline "}}"
